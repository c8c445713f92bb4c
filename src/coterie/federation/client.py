"""A client: its train, validation and test data as tensors, made from what is given and divided at random."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.errors import DataError
from coterie.federation.blocks import block_numbers, split_blocks
from coterie.randomness import torch_generator

PARTS = ("train", "validation", "test")
PART_NAMES = frozenset(PARTS)
Splits = tuple[float, float, float]
"""Fractions of a client's samples for train, validation and test."""
L = TypeVar("L")
ONE_TYPE = "give all inputs in one type"
STANDARD: Splits = (0.8, 0.1, 0.1)
FINAL = (torch.float32, torch.int64)
"""Types that inputs and targets are kept in."""


@dataclass(frozen=True, slots=True)
class Split:
    """Samples `x: (n, ...)` and their targets `y: (n, ...)`; `n` may be zero for validation and test."""

    x: Tensor
    y: Tensor
    block: Tensor | None = None
    """The number of the block (a recording, a day, a patient) that each sample is of: (n,), where that is known."""

    def __post_init__(self) -> None:
        # A slice of a larger tensor remembers what it is a slice of, for gradients that data never get. That takes
        # 320 bytes, more than the samples of many a small client.
        for name, tensor in (("x", self.x), ("y", self.y)):
            if isinstance(tensor, Tensor) and tensor._is_view():
                object.__setattr__(self, name, tensor.detach())

    def __len__(self) -> int:
        return self.y.shape[0]  # len() of a tensor takes several times as long

    def take(self, rows: Tensor | slice) -> Split:
        """The samples at some places, or where a mask is true."""
        return Split(self.x[rows], self.y[rows], None if self.block is None else self.block[rows])


@dataclass(frozen=True, slots=True)
class Client:
    """A holder of private data. `group` is the hidden truth of a simulation: only metrics may read it."""

    id: str
    train: Split
    validation: Split
    test: Split
    group: int | None = None
    scaled: bool = False
    """Whether its inputs came as uint8 and were scaled to [0, 1]; all clients' must have come alike."""

    def part(self, name: str) -> Split:
        """The split called `name`: train, validation or test."""
        split: Split = getattr(self, name)
        return split

    def with_targets(self, change: Callable[[Tensor], Tensor]) -> Client:
        """The same client with other targets, as a function makes them of its own."""
        train, validation, test = (replace(split, y=change(split.y)) for split in map(self.part, PARTS))
        return replace(self, train=train, validation=validation, test=test)


def make_client(
    client_id: str,
    item: Any,
    splits: Splits = STANDARD,
    seed: int = 0,
    group: int | None = None,
    blocks: Any = None,
) -> Client:
    """One client from `(x, y)` or from a dict of `(x, y)` pairs, divided by `splits` where no parts are given.

    `blocks` names the block of each training sample (n,), where that is known.
    """
    given = item if isinstance(item, Mapping) else {"train": item}
    if "train" not in given or not PART_NAMES.issuperset(given):
        raise DataError(
            f"client {client_id!r}: expected parts among {', '.join(PARTS)} with at least train, got {sorted(given)}: "
            "rename or add them"
        )
    parts = {part: split for part, pair in given.items() if (split := _finished(pair)) is not None}
    scaled = False
    if len(parts) < len(given):
        parts = {part: _as_split(client_id, part, pair) for part, pair in given.items()}
        scaled = _came_as_bytes(client_id, {part: pair for part, pair in given.items() if len(parts[part])})
    if blocks is not None:
        parts["train"] = replace(parts["train"], block=block_numbers(client_id, blocks, len(parts["train"])))
    if len(parts) == 1:
        parts = _divide(client_id, parts["train"], splits, seed)
    train = parts["train"]
    empty = _empty(train.x.shape[1:], train.x.dtype, train.y.shape[1:], train.y.dtype)
    return Client(client_id, train, parts.get("validation", empty), parts.get("test", empty), group, scaled)


def _finished(pair: Any) -> Split | None:
    """The pair where it is of tensors of the final types, of which there may be very many; else None."""
    if type(pair) is not tuple or len(pair) != 2:
        return None
    x, y = pair
    if not (type(x) is Tensor and type(y) is Tensor and x.dtype in FINAL and y.dtype in FINAL):
        return None
    inputs, targets = x.shape, y.shape
    return Split(x, y) if inputs and targets and inputs[0] == targets[0] else None


def _came_as_bytes(client_id: str, given: Mapping[str, Any]) -> bool:
    """Whether the inputs of the parts are uint8: all of them or none."""
    held = {part: _holds_bytes(pair) for part, pair in given.items()}
    if len(set(held.values())) > 1:
        first, *others = held
        other = next(part for part in others if held[part] != held[first])
        raise DataError(f"client {client_id!r}: of {first} and {other} one came as uint8, which is scaled: {ONE_TYPE}")
    return any(held.values())


def _holds_bytes(pair: Any) -> bool:
    """Whether the inputs are uint8, which `as_tensor` scales to [0, 1]."""
    kind = None if isinstance(pair, Split) else getattr(pair[0], "dtype", None)
    return kind is torch.uint8 or (isinstance(kind, np.dtype) and kind == np.uint8)


def as_tensor(values: Any) -> Tensor:
    """The values as a tensor the engines can use: uint8 scaled to [0, 1], reals float32, integers int64.

    An array that already has its final type is not copied, so that memory-mapped arrays stay on disk.
    """
    tensor = _real(values)
    return tensor.to(torch.float32) / 255 if tensor.dtype == torch.uint8 else as_target(tensor)


def as_target(values: Any) -> Tensor:
    """Targets as a tensor: integers of any width int64 (never scaled), reals float32."""
    tensor = _real(values)
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


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
    if not x.ndim or not y.ndim or x.shape[0] != y.shape[0]:
        raise DataError(
            f"client {client_id!r}, {part}: x has {len(x) if x.ndim else 'no'} samples and y has "
            f"{len(y) if y.ndim else 'no'} targets: give one target for each sample"
        )
    return Split(x, y)


@lru_cache(maxsize=16)
def _empty(inputs: torch.Size, input_type: torch.dtype, targets: torch.Size, target_type: torch.dtype) -> Split:
    """A split without samples; clients of one kind share it."""
    return Split(torch.empty(0, *inputs, dtype=input_type), torch.empty(0, *targets, dtype=target_type))


def check_regular(file: Path) -> None:
    """DataError for a pipe, a device or a link to one: reading it might never end. One that is missing is let pass."""
    if file.exists() and not file.is_file():
        raise DataError(f"{file}: not a regular file: give one, or remove it")


def check_id(client_id: str) -> None:
    if not isinstance(client_id, str) or not client_id:
        raise DataError(f"client id {client_id!r}: expected a non-empty string")
    try:
        client_id.encode()
    except UnicodeEncodeError:  # the system gives bytes of a file's name that are no UTF-8 as surrogates
        raise DataError(
            f"client id {client_id!r}: not text in UTF-8: rename the client, or the file that names it"
        ) from None
    if any(unicodedata.category(letter) == "Cc" for letter in client_id):  # run folders list ids one per line
        raise DataError(f"client id {client_id!r}: holds a line break or another control character: rename the client")


def entry_of(given: Mapping[str, L] | Sequence[L] | None, what: str, client_id: str, position: int = 0) -> L | None:
    """A client's entry in what is given for all clients, by its id or its position; None where nothing is given."""
    if given is None:
        return None
    try:
        return given[client_id] if isinstance(given, Mapping) else given[position]
    except (KeyError, IndexError):
        raise DataError(f"client {client_id!r} has no entry in {what}: give every client one") from None


def _describe(value: Any) -> str:
    return f"{type(value).__name__} of length {len(value)}" if hasattr(value, "__len__") else type(value).__name__


def part_bounds(n: int, splits: Splits) -> dict[str, tuple[int, int]]:
    """Where each part begins and ends among n samples in a row; at least one is for training."""
    if len(splits) != 3 or min(splits) < 0 or splits[0] <= 0 or abs(sum(splits) - 1) > 1e-6:
        raise DataError(f"splits={splits}: expected three fractions that sum to 1, the first above 0")
    n_test, n_validation = round(n * splits[2]), round(n * splits[1])
    n_train = max(n - n_test - n_validation, min(n, 1))
    return {"train": (0, n_train), "validation": (n_train, n - n_test), "test": (max(n - n_test, n_train), n)}


def _divide(client_id: str, data: Split, splits: Splits, seed: int) -> dict[str, Split]:
    if splits[0] == 1 and part_bounds(len(data), splits):
        # Nothing is drawn, so nothing is copied: a memory-mapped array stays on disk.
        return {"train": data}
    rows = split_rows(client_id, len(data), splits, seed, data.block)
    return {part: data.take(own) for part, own in rows.items()}


def split_rows(client_id: str, n: int, splits: Splits, seed: int, block: Tensor | None = None) -> dict[str, Tensor]:
    """Which of a client's n samples are for train, validation and test: drawn at random, or all for train in order.

    Where samples have blocks (n,), whole blocks are drawn.
    """
    check_id(client_id)
    bounds = part_bounds(n, splits)
    generator = torch_generator(seed, "split", client_id)
    if block is not None:
        return split_blocks(block, {part: b - a for part, (a, b) in bounds.items()}, generator)
    order = torch.arange(n) if splits[0] == 1 else torch.randperm(n, generator=generator)
    return {part: order[a:b] for part, (a, b) in bounds.items()}


JOINED = 2**16
"""Numbers of several clients that are looked at together; a client with more is looked at alone."""


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors `(n_i, ...)` one after the other; a single one is not copied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def several(clients: Sequence[Client]) -> Iterator[list[Client]]:
    """The clients in turn, enough at a time that one operation on all of them costs little more than on one."""
    some: list[Client] = []
    room = JOINED
    for client in clients:
        some.append(client)
        room -= client.train.x.numel() + client.test.x.numel()
        if room <= 0:
            yield some
            some, room = [], JOINED
    if some:
        yield some


def values_of(clients: Sequence[Client], what: str) -> Tensor:
    """The inputs or targets of all parts of all the clients."""
    splits = [split for c in clients for split in (c.train, c.validation, c.test) if split.y.shape[0]]
    return joined([getattr(split, what) for split in splits or [clients[0].train]])


def label_values(clients: Sequence[Client]) -> Iterator[Tensor]:
    """The clients' labels, of many clients at a time."""
    for some in several(clients):
        labels = values_of(some, "y")
        if len(labels):
            yield labels
