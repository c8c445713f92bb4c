"""Tasks and replies as plain values and tensors: what is sent over a network, and how many bytes that takes.

Nothing is pickled. What a field of a task leaves out (see `Sent`) is put back by the client; a field may be a task
itself. Bytes are those of the tensors (float32), of the numbers in replies, and of the seeds that tensors are drawn
from; a task's other plain fields, names and the framing of messages are not counted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.parameters import Layout, gather, scatter, span_size
from coterie.plugins import load, offered
from coterie.tasks.base import Array, Number, Reply, ReplySchema, Sent, Task, tensor_key
from coterie.trainers.augment import own_function
from coterie.trainers.base import Training

TENSOR_NUMBER = 4
"""Bytes of a float32 in a tensor."""
NUMBER = 8
"""Bytes of a single number in a reply, and of a seed."""

Draw = Callable[[int], Tensor]
"""Makes the initial model `(d,)` of a seed."""
Spans = tuple[slice, ...]


class BadReply(ValueError):
    """A reply that must not be used; its text is the reason."""


class SentTensor(NamedTuple):
    """A tensor of a task as it is sent: whole, or without some places of its last dimension.

    `once` are places that are equal in all rows and stand once, before the rows without them.
    """

    tensor: Tensor
    without: Spans = ()
    once: Spans = ()

    @property
    def numel(self) -> int:
        """How many numbers are sent."""
        size = self.tensor.shape[-1] if self.tensor.ndim else 1
        rows = self.tensor.numel() // size if size else 0
        shared = span_size(self.once)
        return shared + rows * (size - span_size(self.without) - shared)

    def value(self, layout: Layout) -> Tensor:
        """The numbers that are sent: the tensor itself, or a flat one."""
        if not (self.without or self.once):
            return self.tensor
        rest = gather(self.tensor, layout.complement((*self.without, *self.once)))
        if not self.once:
            return rest
        return torch.cat([gather(self.tensor[0], self.once), rest.reshape(-1)])

    def key(self) -> Hashable:
        """Equal for tensors that are sent as the same numbers."""
        return tensor_key(self.tensor), _pairs(self.without), _pairs(self.once)


class Encoded(NamedTuple):
    """A task as plain values (JSON can hold them) and tensors.

    `drawn` maps a field to the seed of the initial model that it is drawn from, in whole or in part.
    """

    fields: dict[str, Any]
    tensors: dict[str, SentTensor]
    drawn: dict[str, tuple[int, SentTensor]]


def encode(task: Task, layout: Layout) -> Encoded:
    """What is sent of a task, for models of this layout."""
    fields: dict[str, Any] = {}
    tensors: dict[str, SentTensor] = {}
    drawn: dict[str, tuple[int, SentTensor]] = {}
    for name, how in task_fields(type(task)).items():
        value = getattr(task, name)
        if isinstance(value, Task):
            inner = encode(value, layout)
            fields[name] = {"task": value.kind(), "fields": inner.fields}
            tensors |= {f"{name}.{own}": part for own, part in inner.tensors.items()}
            drawn |= {f"{name}.{own}": part for own, part in inner.drawn.items()}
            continue
        if not isinstance(value, Tensor):
            fields[name] = _plain(value)
            continue
        part, seed = _sent(task, how, value, layout)
        if seed is not None:
            drawn[name] = (seed, part)
        if part.numel or seed is None:
            tensors[name] = part
    return Encoded(fields, tensors, drawn)


def decode(kind: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor], layout: Layout, draw: Draw) -> Task:
    """The task that `encode` was given; ConfigError where there is none. `fields["drawn"]` may name seeds."""
    cls = find_task(kind)
    try:
        seeds: Mapping[str, int] = fields.get("drawn", {})
        values = {name: _opened(value) for name, value in fields.items() if name != "drawn" and not _is_task(value)}
        for name, value in fields.items():
            if _is_task(value):
                own = value["fields"] | {"drawn": _within(name, seeds)}
                values[name] = decode(value["task"], own, _within(name, tensors), layout, draw)
        whole = {
            name: _whole(values, how, tensors.get(name), seeds.get(name), layout, draw)
            for name, how in task_fields(cls).items()
            if name in tensors or name in seeds
        }
        return cls(**values, **whole)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as problem:
        raise ConfigError(
            f"this message holds no task ({problem}): use the same version of coterie everywhere"
        ) from problem


def same_form(task: Task, other: Task | None) -> bool:
    """Whether two tasks are the same things but for their seeds: then they and their replies take as many bytes."""
    if task is other:
        return True
    return type(task) is type(other) and all(getattr(task, name) is getattr(other, name) for name in _form(type(task)))


@cache
def _form(cls: type[Task]) -> tuple[str, ...]:
    return tuple(name for name in task_fields(cls) if name != "seed")


def task_bytes(task: Task, layout: Layout) -> int:
    """Bytes that reach a client with the task."""
    total = 0
    for name, how in task_fields(type(task)).items():
        value = getattr(task, name)
        if isinstance(value, Task):
            total += task_bytes(value, layout)
        if isinstance(value, Tensor):
            part, seed = _sent(task, how, value, layout)
            total += part.numel * TENSOR_NUMBER + (0 if seed is None else NUMBER)
    return total


def reply_bytes(reply: Reply, schema: ReplySchema) -> int:
    """Bytes that a reply takes, whether or not its vector was added to others on the way."""
    total = 0 if schema.vector is None else TENSOR_NUMBER * (schema.vector - span_size(schema.private))
    for name, kind in schema.values.items():
        if isinstance(kind, Number):
            total += NUMBER
        else:
            value = reply.values[name]
            total += TENSOR_NUMBER * (value.numel() if isinstance(value, Tensor) else len(value))
    return total + (NUMBER if schema.choices > 1 else 0)


def not_finite(reply: Reply, schema: ReplySchema) -> str | None:
    """The name of the first array in a reply that is not finite though it should be, or None."""
    for name, kind in schema.values.items():
        if isinstance(kind, Array) and kind.finite and not torch.isfinite(torch.as_tensor(reply.values[name])).all():
            return name.replace("_", " ")
    return None


def check_values(values: Mapping[str, Any], schema: ReplySchema) -> None:
    """BadReply unless the values are exactly as the schema says."""
    if set(values) != set(schema.values):
        raise BadReply(f"it sent values {listed(values)}, expected {listed(schema.values)}")
    for name, kind in schema.values.items():
        if isinstance(kind, Number):
            _check_number(name, values[name], kind)
        else:
            _check_array(name, values[name], kind)


def _check_number(name: str, value: Any, kind: Number) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadReply(f"it sent no number as {name}")
    if kind.integer and not isinstance(value, int):
        raise BadReply(f"it sent {value} as {name}, expected a whole number")
    if kind.finite and not math.isfinite(value):
        raise BadReply(f"its {name.replace('_', ' ')} is not finite: lower the learning rate")
    if math.isnan(value) or not kind.minimum <= value <= kind.maximum:
        raise BadReply(f"it sent {value:g} as {name}, expected {kind.minimum:g} to {kind.maximum:g}")


def _check_array(name: str, value: Any, kind: Array) -> None:
    numbers = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    if not kind.fits(tuple(numbers.shape)):
        raise BadReply(f"it sent {name} of shape {tuple(numbers.shape)}, expected {kind.shape}")
    if kind.finite and not torch.isfinite(numbers).all():
        raise BadReply(f"its {name.replace('_', ' ')} is not finite")
    known = numbers[~numbers.isnan()]
    if len(known) and not (kind.minimum <= float(known.min()) and float(known.max()) <= kind.maximum):
        raise BadReply(f"it sent {name} outside {kind.minimum:g} to {kind.maximum:g}")


def find_task(kind: str) -> type[Task]:
    """The class of a task by its name. Packages that offer methods are imported to look for it; nothing else is."""
    if kind in Task.kinds:
        return Task.kinds[kind]
    problems = []
    # The package that the task's name begins with comes first: another one may be broken.
    points = sorted(
        offered("coterie.methods").values(), key=lambda point: not kind.startswith(point.module.partition(".")[0] + ".")
    )
    for point in points:
        if kind in Task.kinds:
            break
        try:
            load(point, "method")
        except ConfigError as problem:
            problems.append(f"; {problem}")
    found = Task.kinds.get(kind)
    if found is None:
        raise ConfigError(
            f"this client knows no task {kind!r}: install the package that defines it here too, or import it in the "
            f"ClientApp{''.join(problems)}"
        )
    return found


@cache
def task_fields(cls: type[Task]) -> dict[str, Sent]:
    """The fields of a task, and how those that are tensors are sent; ConfigError for a class that is no dataclass."""
    if not dataclasses.is_dataclass(cls):
        raise ConfigError(f"the task {cls.__name__} is no dataclass: write @dataclass(frozen=True) above it")
    hints = get_type_hints(cls, include_extras=True)
    found = {}
    for entry in dataclasses.fields(cls):
        marks = [mark for mark in getattr(hints[entry.name], "__metadata__", ()) if isinstance(mark, Sent)]
        found[entry.name] = marks[0] if marks else Sent()
    return found


def checksum(tensor: Tensor) -> str:
    """A short hash of a tensor's numbers in float32."""
    return hashlib.blake2b(tensor.detach().to(torch.float32).contiguous().numpy().tobytes(), digest_size=8).hexdigest()


def drawn_part(part: SentTensor) -> Tensor:
    """The numbers of a tensor that a client draws itself: all, or those that are left out."""
    return gather(part.tensor, part.without) if part.without else part.tensor


def _sent(task: Task, how: Sent, value: Tensor, layout: Layout) -> tuple[SentTensor, int | None]:
    """How a tensor field is sent, and the seed of what is left out of it."""
    if how.once:
        return SentTensor(value, once=_spans(getattr(task, how.once))), None
    seed = getattr(task, how.drawn) if how.drawn else None
    if seed is None:
        return SentTensor(value), None
    if not how.without:
        return SentTensor(value, without=(slice(0, value.shape[-1]),)), seed
    spans = layout.select(getattr(task, how.without))
    return (SentTensor(value, without=spans), seed) if spans else (SentTensor(value), None)


def _whole(
    values: Mapping[str, Any], how: Sent, numbers: Tensor | None, seed: int | None, layout: Layout, draw: Draw
) -> Tensor:
    """The tensor of a field from what was sent of it; `values` are the task's plain fields."""
    if seed is not None:
        model = draw(int(seed)).clone()
        if how.without:
            spans = layout.complement(layout.select(values[how.without]))
            sent = model[:0] if numbers is None else numbers
            if sent.shape != (span_size(spans),):
                raise ValueError(f"a model has shape {tuple(sent.shape)}, expected {span_size(spans)} numbers")
            scatter(model, spans, sent)
        return model
    assert numbers is not None
    once = _spans(values[how.once]) if how.once else ()
    if not once:
        return numbers
    shared, rest = span_size(once), layout.complement(once)
    rows = numbers[shared:].view(-1, span_size(rest))
    whole = numbers.new_empty(len(rows), layout.size)
    scatter(whole, once, numbers[:shared])
    scatter(whole, rest, rows)
    return whole


def _plain(value: Any) -> Any:
    if isinstance(value, Training):
        _check_augment(value.augment)
        return {"training": dataclasses.asdict(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(
        f"a task cannot send {type(value).__name__}: expected numbers, text, tuples of these, tensors, Training"
    )


def _is_task(value: Any) -> bool:
    return isinstance(value, dict) and "task" in value


def _within(name: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that belong to the task in a field of that name."""
    return {part.removeprefix(f"{name}."): value for part, value in parts.items() if part.startswith(f"{name}.")}


def _opened(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_opened(item) for item in value)
    if isinstance(value, dict):
        training = Training(**{name: _opened(item) for name, item in value["training"].items()})
        _check_augment(training.augment)
        return training
    return value


def _check_augment(augment: Any) -> None:
    """Refuse a function of the user's own: a client runs no code that a message names."""
    if augment is not None and (not isinstance(augment, str) or own_function(augment)):
        raise ConfigError(f"augment={augment!r} cannot be sent to clients elsewhere: use flip or crop")


def _spans(pairs: tuple[tuple[int, int], ...]) -> Spans:
    return tuple(slice(start, stop) for start, stop in pairs)


def _pairs(spans: Spans) -> tuple[tuple[int, int], ...]:
    return tuple((span.start, span.stop) for span in spans)


def listed(names: Any) -> str:
    """Names from outside in one safe line."""
    return in_words(", ".join(sorted(map(str, names)))) or "none"


REASON_LETTERS = 300


def in_words(text: Any) -> str:
    """Text from outside as one short line that is safe to print."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[: 20 * REASON_LETTERS]).split())
    return line if len(line) <= REASON_LETTERS else line[: REASON_LETTERS - 1] + "…"
