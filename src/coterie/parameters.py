"""A model as one flat vector, and the layout that says which numbers belong to which layer.

Trainable parameters stand first, buffers (such as BatchNorm statistics) after them: buffers take part in
averaging, but similarity and norms look at the first `layout.trainable` numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Entry:
    """One tensor of a model and its place in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    buffer: bool


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of a model's tensors in its flat vector."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module: its parameters in order, then its buffers."""
        tensors: list[tuple[str, Tensor, bool]] = [(name, tensor, False) for name, tensor in module.named_parameters()]
        tensors += [(name, tensor, True) for name, tensor in module.named_buffers()]
        entries, start = [], 0
        for name, tensor, buffer in tensors:
            entries.append(Entry(name, tuple(tensor.shape), start, start + tensor.numel(), buffer))
            start += tensor.numel()
        return cls(tuple(entries))

    @cached_property
    def size(self) -> int:
        """Length of the flat vector."""
        return self.entries[-1].stop if self.entries else 0

    @cached_property
    def trainable(self) -> int:
        """How many leading numbers are trainable parameters."""
        return max((entry.stop for entry in self.entries if not entry.buffer), default=0)

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Names of the modules that hold parameters, in order: `("hidden", "head")`."""
        owners = [entry.name.rpartition(".")[0] or entry.name for entry in self.entries if not entry.buffer]
        return tuple(dict.fromkeys(owners))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors, buffers included: every number of the vector belongs to one of them."""
        return tuple(entry.name for entry in self.entries)

    def output_of(self) -> Tensor:
        """For each trainable number `(trainable,)`, which output of which layer it belongs to, counted from 0.

        An output of a layer is a row of its tensors; tensors of one layer with as many rows share their outputs.
        """
        numbers: dict[tuple[str, int], int] = {}
        found, known = torch.empty(self.trainable, dtype=torch.int64), 0
        for entry in self.entries:
            if entry.buffer:
                continue
            rows = entry.shape[0] if entry.shape else 1
            key = (entry.name.rpartition(".")[0], rows)
            if key not in numbers:
                numbers[key], known = known, known + rows
            place = found[entry.start : entry.stop].view(rows, -1)
            place.copy_(numbers[key] + torch.arange(rows)[:, None])
        return found

    def read(self, module: nn.Module, dtype: torch.dtype = torch.float32) -> Tensor:
        """A new flat vector with a copy of the module's parameters and buffers."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        vector = torch.empty(self.size, dtype=dtype)
        with torch.no_grad():
            for entry in self.entries:
                values = tensors[entry.name].detach().reshape(-1)
                place = vector[entry.start : entry.stop]
                place.copy_(values)
                if not values.is_floating_point() and not torch.equal(place.to(values.dtype), values.cpu()):
                    raise ConfigError(
                        f"buffer {entry.name!r} holds whole numbers that {str(dtype).removeprefix('torch.')} cannot "
                        "hold exactly: give precision='float64', or keep them outside the model's buffers"
                    )
        return vector

    def write(self, vector: Tensor, module: nn.Module) -> None:
        """Copy the vector into the module's own tensors; the two never share memory."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for entry in self.entries:
                values = vector[entry.start : entry.stop].view(entry.shape)
                target = tensors[entry.name]
                target.copy_(values if target.is_floating_point() else values.round())

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Named views of the vector's last dimension: `(..., d)` gives tensors `(..., *shape)`."""
        lead = vector.shape[:-1]
        return {e.name: vector[..., e.start : e.stop].reshape((*lead, *e.shape)) for e in self.entries}

    def select(self, layers: str | Sequence[str]) -> tuple[slice, ...]:
        """The places of the named layers; `"last"` is the last layer with parameters, buffers of a layer included.

        A name stands for a tensor (`head.weight`), a layer (`head`) or a part of the model (`features`).
        """
        names = [layers] if isinstance(layers, str) else list(layers)
        names = [self.layers[-1] if name == "last" else name for name in names]
        found: list[Entry] = []
        for name in names:
            hits = [e for e in self.entries if e.name == name or e.name.startswith(name + ".")]
            if not hits:
                known = {*self.layers, *(e.name for e in self.entries if not e.buffer)}
                raise ConfigError(f"no layer {name!r} in this model: {did_you_mean(name, known)}")
            found += [hit for hit in hits if hit not in found]
        spans: list[slice] = []
        for entry in sorted(found, key=lambda e: e.start):
            if spans and spans[-1].stop == entry.start:
                spans[-1] = slice(spans[-1].start, entry.stop)
            else:
                spans.append(slice(entry.start, entry.stop))
        return tuple(spans)

    def complement(self, spans: Sequence[slice]) -> tuple[slice, ...]:
        """The places that `spans` leaves out."""
        return complement(spans, self.size)


def complement(spans: Sequence[slice], size: int) -> tuple[slice, ...]:
    """The places of a vector `(size,)` that `spans` leaves out."""
    rest, at = [], 0
    for span in sorted(spans, key=lambda s: s.start):
        if span.start > at:
            rest.append(slice(at, span.start))
        at = span.stop
    if at < size:
        rest.append(slice(at, size))
    return tuple(rest)


def span_size(spans: Sequence[slice]) -> int:
    """How many numbers the spans cover."""
    return sum(span.stop - span.start for span in spans)


def gather(vector: Tensor, spans: Sequence[slice]) -> Tensor:
    """The numbers of the last dimension that the spans cover, copied and joined."""
    return torch.cat([vector[..., span] for span in spans], dim=-1) if spans else vector[..., :0].clone()


def scatter(vector: Tensor, spans: Sequence[slice], values: Tensor) -> None:
    """Write joined values back to the places that the spans cover, in place."""
    at = 0
    for span in spans:
        width = span.stop - span.start
        vector[..., span] = values[..., at : at + width]
        at += width
