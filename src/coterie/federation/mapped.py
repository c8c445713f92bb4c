"""Data that stays on disk until it is used, so that a federation can be larger than memory.

Arrays in `.npy` files are mapped where they lie. What can only be had by loading it, such as a random split of an
archive, is written to a file without a name once it is beyond a bound, and mapped from there.
"""

from __future__ import annotations

import os
import re
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.errors import DataError
from coterie.federation.client import PARTS, Client, Split, check_regular, part_bounds

NAMED = re.compile(r"(.+)\.((?:x|y)(?:_\w+)?|group)\.npy")
"""The name of a client's file: its id, then which array it holds."""
SMALL = 2**16
"""Files below this are loaded: a system allows some ten thousand mappings, and there may be more clients."""
STORED = ("float32", "int64")
"""Types of inputs that can be used as they lie."""
ALIGNED = 64
UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, SyntaxError, RecursionError, MemoryError, OverflowError),
    *(NotImplementedError, RuntimeError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)
"""What NumPy and its parsers raise for bytes that are not the arrays they should be."""
SORTED = 20
"""Labels that lie in rising order are no accident from this number of samples on."""


def npy_files(folder: Path) -> dict[str, dict[str, Path]]:
    """The files `<id>.x.npy`, `<id>.y.npy`, … of a folder, by the client's id and the array's name."""
    found: dict[str, dict[str, Path]] = {}
    for file in sorted(folder.glob("*.npy")):
        if match := NAMED.fullmatch(file.name):
            found.setdefault(match[1], {})[match[2]] = file
    return found


def mapped_array(file: Path, *, least: int = 0) -> np.ndarray:
    """The array in a `.npy` file, left on disk unless the file is smaller than `least` bytes."""
    check_regular(file)
    try:
        # Copy-on-write, because torch wants memory that it might write to; nothing reaches the file.
        mode = "c" if os.path.getsize(file) >= least else None
        loaded: np.ndarray = np.load(file, mmap_mode=mode, allow_pickle=False)  # type: ignore[arg-type]
    except UNREADABLE as problem:
        raise DataError(f"{file}: not a readable .npy file of plain numbers ({problem})") from problem
    return loaded


def mapped_arrays(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The arrays of one client by name; inputs of a type that would have to be converted in memory are refused."""
    arrays = {name: mapped_array(file, least=SMALL) for name, file in files.items()}
    for name, values in arrays.items():
        if name.startswith("x") and values.dtype.name not in STORED:
            raise DataError(
                f"{files[name]}: {values.dtype} inputs cannot be used as they lie on disk: save them as float32 "
                "(bytes divided by 255) or int64"
            )
    return arrays


def divided_as_it_lies(client: Client, splits: tuple[float, float, float]) -> Client:
    """The client with its training data divided by position, without a copy: the first rows are for training."""
    data = client.train
    bounds = part_bounds(len(data), splits)
    if bounds["train"][1] == len(data):
        return client
    if _sorted_labels(data.y):
        raise DataError(
            f"client {client.id!r}: its labels lie in rising order, so the last rows cannot test what the first teach: "
            "shuffle the rows, or give x_train, y_train, x_test and y_test"
        )
    train, validation, test = (Split(data.x[a:b], data.y[a:b]) for a, b in (bounds[part] for part in PARTS))
    return replace(client, train=train, validation=validation, test=test)


def _sorted_labels(y: Tensor) -> bool:
    labels = y.ndim == 1 and len(y) >= SORTED and not y.is_floating_point()
    return labels and bool(y[0] < y[-1]) and not bool((y.diff() < 0).any())


class _Stored(NamedTuple):
    """Where a tensor begins in the file, and what it looks like."""

    start: int
    shape: torch.Size
    dtype: torch.dtype


def within_memory(clients: Iterable[Client], budget: int) -> list[Client]:
    """The same clients, with no more than `budget` bytes in memory and the rest mapped from a file without a name."""
    # Not /tmp, which may itself be in memory.
    place = os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            return _divided_between(clients, budget, file)
    except OSError as problem:
        raise DataError(
            f"{place}: data that does not fit into memory cannot be kept there ({problem.strerror}): set TMPDIR to a "
            "folder with more room"
        ) from problem


def _divided_between(clients: Iterable[Client], budget: int, file: BinaryIO) -> list[Client]:
    """The clients, those beyond `budget` bytes in the file."""
    kept: list[Client] = []
    stored: dict[int, list[_Stored]] = {}
    for client in clients:
        tensors = [values for part in PARTS for values in (client.part(part).x, client.part(part).y)]
        size = sum(values.nbytes for values in tensors)
        if size <= budget:
            budget -= size
            kept.append(client)
            continue
        stored[len(kept)] = [_write(file, values) for values in tensors]
        nothing = Split(tensors[0].new_empty(0), tensors[1].new_empty(0))
        blocks = replace(nothing, block=client.train.block)
        kept.append(replace(client, train=blocks, validation=nothing, test=nothing))
    if stored:
        file.flush()
        # One mapping for all; shared, because the system sets memory aside for what a private one might write.
        memory = torch.from_numpy(np.memmap(file, np.uint8, "r+"))
        for position, places in stored.items():
            kept[position] = _with_data(kept[position], memory, places)
    return kept


def _with_data(client: Client, memory: Tensor, places: Sequence[_Stored]) -> Client:
    """A client with its tensors as they lie in the file."""
    x, y = ([_read(memory, place) for place in places[i::2]] for i in (0, 1))
    train, validation, test = map(Split, x, y)
    return replace(client, train=replace(train, block=client.train.block), validation=validation, test=test)


def _write(file: BinaryIO, values: Tensor) -> _Stored:
    start = -(-file.tell() // ALIGNED) * ALIGNED
    file.seek(start)
    file.write(values.contiguous().numpy().data)
    return _Stored(start, values.shape, values.dtype)


def _read(memory: Tensor, place: _Stored) -> Tensor:
    size = place.shape.numel() * place.dtype.itemsize
    if size == 0:  # its place may lie beyond the end of the file
        return torch.empty(place.shape, dtype=place.dtype)
    return memory[place.start : place.start + size].view(place.dtype).view(place.shape)
