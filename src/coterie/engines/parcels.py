"""How orders and replies travel between processes: small things pickled, tensors through shared memory."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNED = 64
"""Tensors that are computed with start at such places, as torch's own do, so that results are the same."""


class SharedMemory:
    """Memory that several processes see, opened by its `path`; it vanishes with the process that made it.

    Pages take up memory only once they are written, so that a generous size costs nothing.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._removed = ""
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("coterie")
            self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        else:
            self._file, self.path = tempfile.mkstemp(prefix="coterie-")
            self._removed = self.path
        os.ftruncate(self._file, size)
        self.bytes = torch.frombuffer(mmap.mmap(self._file, size), dtype=torch.uint8)

    def close(self) -> None:
        """Give the memory back once nobody uses it."""
        os.close(self._file)
        if self._removed:
            os.unlink(self._removed)


def attach(path: str, size: int) -> Tensor:
    """The bytes `(size,)` of a shared memory made by another process."""
    file = os.open(path, os.O_RDWR)
    memory = torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
    os.close(file)
    return memory


class Shelf:
    """Bytes `(size,)` that are filled with tensors one after another, each put up once, known by its identity.

    `aligned` tensors start where torch's own do; the others follow each other without a gap.
    """

    def __init__(self, memory: Tensor, *, aligned: bool = True) -> None:
        self.memory = memory
        self.aligned = aligned
        self.used = 0
        self._places: dict[int, int] = {}
        self._alive: list[Tensor] = []  # an id is only good while its tensor lives

    def place(self, tensor: Tensor) -> int | None:
        """Where the tensor stands, put up now if it is new; None when there is no room for it."""
        place = self._places.get(id(tensor))
        if place is not None:
            return place
        step = ALIGNED if self.aligned else tensor.element_size()
        start = -(-self.used // step) * step
        stop = start + tensor.numel() * tensor.element_size()
        if stop > len(self.memory):
            return None
        _view(self.memory, start, tensor.dtype, tensor.shape).copy_(tensor)
        self.used = stop
        self._places[id(tensor)] = start
        self._alive.append(tensor)
        return start


def _view(memory: Tensor, start: int, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    return memory[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, place: Callable[[Tensor], tuple[str, int] | None]) -> None:
        super().__init__(file, protocol=5)
        self.place = place

    def persistent_id(self, thing: Any) -> Any:
        if not isinstance(thing, Tensor):
            return None
        place = self.place(thing)
        if place is not None:
            return (*place, thing.dtype, thing.shape)
        return ("here", thing.contiguous().view(-1).view(torch.uint8).numpy(), thing.dtype, thing.shape)


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memories: dict[str, Tensor]) -> None:
        super().__init__(file)
        self.memories = memories
        self._seen: dict[Any, Tensor] = {}

    def persistent_load(self, pid: Any) -> Tensor:
        where, what, dtype, shape = pid
        if where == "here":
            # A copy, because an array that was pickled starts at any place.
            return torch.from_numpy(np.array(what)).clone().view(dtype).view(shape)
        # What was one tensor is one again: tasks are performed together when they share their models.
        # The shape is part of the key, because an empty tensor stands where the next one begins.
        if pid not in self._seen:
            self._seen[pid] = _view(self.memories[where], what, dtype, shape)
        return self._seen[pid]


def pack(thing: Any, shelf: Shelf, board: Shelf | None = None) -> bytes:
    """Pickle `thing` with its tensors on the board, else on the shelf, else in the pickle itself."""

    def place(tensor: Tensor) -> tuple[str, int] | None:
        at = board.place(tensor) if board is not None else None
        if at is not None:
            return "board", at
        at = shelf.place(tensor)
        return None if at is None else ("shelf", at)

    file = io.BytesIO()
    _Packer(file, place).dump(thing)
    return file.getvalue()


def unpack(data: bytes, shelf: Tensor, board: Tensor | None = None) -> Any:
    """What `pack` was given; its tensors are views of the shelf's and the board's memory."""
    memories = {"shelf": shelf} if board is None else {"shelf": shelf, "board": board}
    return _Unpacker(io.BytesIO(data), memories).load()
