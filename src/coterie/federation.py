"""A federation: clients with stable ids, each with its own train, validation and test data, checked on the way in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import DataError

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Samples `x: (n, ...)` and their targets `y: (n, ...)`; `n` may be zero for validation and test."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Client:
    """A holder of private data. `group` is the hidden truth of a simulation: only metrics may read it."""

    id: str
    train: Split
    validation: Split
    test: Split
    group: int | None = None

    def part(self, name: str) -> Split:
        """The split called `name`: train, validation or test."""
        split: Split = getattr(self, name)
        return split


class Federation:
    """An immutable, checked collection of clients.

    `classes` is the number of labels, or 0 when the targets are real numbers (regression).
    """

    def __init__(self, clients: Sequence[Client], classes: int | None = None, name: str = "federation") -> None:
        if not clients:
            raise DataError("the federation has no clients: give at least one")
        self.name = name
        self.clients = tuple(clients)
        self.ids = tuple(client.id for client in self.clients)
        self._by_id = {client.id: client for client in self.clients}
        _check_ids(self.ids)
        _check_alike(self.clients)
        self.regression = self.clients[0].train.y.is_floating_point()
        self.classes = 0 if self.regression else _check_labels(self.clients, classes)
        for client in self.clients:
            _check_finite(client)

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(self.clients)

    def __getitem__(self, client_id: str) -> Client:
        return self._by_id[client_id]

    def __repr__(self) -> str:
        sizes = [len(client.train) for client in self.clients]
        shape = "×".join(map(str, self.input_shape)) or "1"
        return (
            f"Federation({self.name!r}: {len(self)} clients, {min(sizes)}-{max(sizes)} training samples, input {shape})"
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.clients[0].train.x.shape[1:])

    @property
    def groups(self) -> list[int] | None:
        """The hidden groups in the order of `ids`, or None when any is unknown. For metrics only."""
        known = [client.group for client in self.clients if client.group is not None]
        return known if len(known) == len(self) else None

    def subset(self, ids: Sequence[str]) -> Federation:
        """The federation of the named clients only."""
        return Federation([self[client_id] for client_id in ids], self.classes or None, self.name)

    @classmethod
    def from_tensors(
        cls,
        data: Mapping[str, Any] | Sequence[Any],
        *,
        splits: tuple[float, float, float] = (0.8, 0.1, 0.1),
        groups: Mapping[str, int] | Sequence[int] | None = None,
        classes: int | None = None,
        seed: int = 0,
        name: str = "tensors",
    ) -> Federation:
        """Make a federation from one item a client: `(x, y)`, or a dict of `train`, `validation`, `test` pairs.

        A mapping gives the ids; a sequence numbers them. A bare `(x, y)`, or a dict of `train` alone, is divided
        by `splits` (fractions of train, validation, test) with the given seed; all to train leaves it as it is.
        """
        items = data.items() if isinstance(data, Mapping) else ((str(i), item) for i, item in enumerate(data))
        clients = []
        for position, (client_id, item) in enumerate(items):
            key: Any = client_id if isinstance(groups, Mapping) else position
            try:
                group = None if groups is None else groups[key]
            except (KeyError, IndexError):
                raise DataError(f"client {client_id!r} has no entry in groups: give every client one") from None
            clients.append(make_client(str(client_id), item, splits, seed, group))
        return cls(clients, classes, name)


def make_client(
    client_id: str,
    item: Any,
    splits: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    group: int | None = None,
) -> Client:
    """One client from `(x, y)` or from a dict of `(x, y)` pairs, divided by `splits` where no parts are given."""
    given = dict(item) if isinstance(item, Mapping) else {"train": item}
    unknown = set(given) - set(PARTS)
    if unknown or "train" not in given:
        raise DataError(
            f"client {client_id!r}: expected parts among {', '.join(PARTS)} with at least train, got {sorted(given)}: "
            "rename or add them"
        )
    parts = {part: _as_split(client_id, part, pair) for part, pair in given.items()}
    if set(parts) == {"train"}:
        parts = _divide(client_id, parts["train"], splits, seed)
    empty = Split(parts["train"].x[:0], parts["train"].y[:0])
    return Client(client_id, parts["train"], parts.get("validation", empty), parts.get("test", empty), group)


def as_tensor(values: Any) -> Tensor:
    """The values as a tensor the engines can use: uint8 scaled to [0, 1], reals float32, integers int64.

    An array that already has its final type is not copied, so that memory-mapped arrays stay on disk.
    """
    tensor = _real(values)
    if tensor.dtype == torch.uint8:
        return tensor.to(torch.float32) / 255
    if tensor.is_floating_point():
        return tensor.to(torch.float32)
    return tensor.to(torch.int64)


def as_target(values: Any) -> Tensor:
    """Targets as a tensor: integers of any width int64 (never scaled), reals float32."""
    tensor = _real(values)
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor.to(torch.int64)


def _real(values: Any) -> Tensor:
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.asanyarray(values))
    if tensor.is_complex():
        raise TypeError(f"{tensor.dtype} numbers are not real")
    return tensor


def _as_split(client_id: str, part: str, pair: Any) -> Split:
    if isinstance(pair, Split):
        return pair
    try:
        x, y = pair
        x, y = as_tensor(x), as_target(y)
    except (TypeError, ValueError) as problem:
        raise DataError(
            f"client {client_id!r}, {part}: expected a pair (x, y) of numeric arrays, got {_describe(pair)} ({problem})"
        ) from problem
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(
            f"client {client_id!r}, {part}: x has {len(x) if x.ndim else 'no'} samples and y has "
            f"{len(y) if y.ndim else 'no'} targets: give one target for each sample"
        )
    return Split(x, y)


def _describe(value: Any) -> str:
    return f"{type(value).__name__} of length {len(value)}" if hasattr(value, "__len__") else type(value).__name__


def part_bounds(n: int, splits: tuple[float, float, float]) -> dict[str, tuple[int, int]]:
    """Where each part begins and ends among n samples in a row; at least one is for training."""
    if len(splits) != 3 or min(splits) < 0 or splits[0] <= 0 or abs(sum(splits) - 1) > 1e-6:
        raise DataError(f"splits={splits}: expected three fractions that sum to 1, the first above 0")
    n_test, n_validation = round(n * splits[2]), round(n * splits[1])
    n_train = max(n - n_test - n_validation, min(n, 1))
    return {"train": (0, n_train), "validation": (n_train, n - n_test), "test": (max(n - n_test, n_train), n)}


def _divide(client_id: str, data: Split, splits: tuple[float, float, float], seed: int) -> dict[str, Split]:
    from coterie.randomness import torch_generator

    bounds = part_bounds(len(data), splits)
    if splits[0] == 1:
        # Nothing is drawn, so nothing is copied: a memory-mapped array stays on disk.
        return {"train": data}
    order = torch.randperm(len(data), generator=torch_generator(seed, "split", client_id))
    return {part: Split(data.x[order[a:b]], data.y[order[a:b]]) for part, (a, b) in bounds.items()}


def _check_ids(ids: Sequence[str]) -> None:
    seen: set[str] = set()
    for client_id in ids:
        if not isinstance(client_id, str) or not client_id:
            raise DataError(f"client id {client_id!r}: expected a non-empty string")
        if client_id in seen:
            raise DataError(f"client {client_id!r} appears twice: give every client an id of its own")
        seen.add(client_id)


def _check_alike(clients: Sequence[Client]) -> None:
    first = clients[0]
    for client in clients:
        if len(client.train) == 0:
            raise DataError(f"client {client.id!r} has no training samples: give it data or leave it out")
        for part in PARTS:
            split = client.part(part)
            if len(split.x) != len(split.y):
                raise DataError(
                    f"client {client.id!r}, {part}: x has {len(split.x)} samples and y has {len(split.y)} targets: "
                    "give one target for each sample"
                )
            for what in ("x", "y"):
                here, there = getattr(split, what), getattr(first.train, what)
                if here.shape[1:] != there.shape[1:] or here.dtype != there.dtype:
                    raise DataError(
                        f"client {client.id!r}, {part}.{what}: shape {tuple(here.shape[1:])} {here.dtype}, but client "
                        f"{first.id!r} has {tuple(there.shape[1:])} {there.dtype}: all clients need the same"
                    )


def _check_labels(clients: Sequence[Client], classes: int | None) -> int:
    highest = 0
    for client in clients:
        for part in PARTS:
            y = client.part(part).y
            if len(y) == 0:
                continue
            low, high = int(y.min()), int(y.max())
            if low < 0 or (classes is not None and high >= classes):
                bad = low if low < 0 else high
                limit = f"0 to {classes - 1}" if classes else "0 and above"
                raise DataError(
                    f"client {client.id!r}, {part}: label {bad} is out of range, expected {limit}: "
                    "renumber the labels or give the right number of classes"
                )
            highest = max(highest, high)
    return classes if classes is not None else highest + 1


def _check_finite(client: Client) -> None:
    for part in PARTS:
        split = client.part(part)
        for what in ("x", "y"):
            values = getattr(split, what)
            # A sum is finite only if every term is (or if huge terms overflow: then look closely).
            if values.is_floating_point() and len(values) and not torch.isfinite(values.sum()):
                bad = (~torch.isfinite(values)).flatten(1).any(1) if values.ndim > 1 else ~torch.isfinite(values)
                if bad.any():
                    raise DataError(
                        f"client {client.id!r}, {part}.{what}: sample {int(bad.nonzero()[0])} holds NaN or Inf: "
                        "clean it or leave the sample out"
                    )
