"""How requests and replies travel between processes and machines: small things pickled, tensors in one buffer."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.tasks.base import tensor_key

Bytes = npt.NDArray[np.uint8]
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
        """Give the memory back once no process uses it."""
        os.close(self._file)
        if self._removed:
            os.unlink(self._removed)


def attach(path: str, size: int) -> Tensor:
    """The bytes `(size,)` of a shared memory made by another process."""
    file = os.open(path, os.O_RDWR)
    memory = torch.frombuffer(mmap.mmap(file, size), dtype=torch.uint8)
    os.close(file)
    return memory


class TensorBuffer:
    """Bytes `(size,)` filled with tensors one after another, each written once however many views of it there are.

    `aligned` tensors start where torch's own do; the others follow each other without a gap.
    """

    def __init__(self, memory: Tensor, *, aligned: bool = True) -> None:
        self.memory = memory
        self.aligned = aligned
        self.used = 0
        self._places: dict[Hashable, int] = {}
        self._alive: list[Tensor] = []  # a key is only good while its tensor lives

    def place(self, tensor: Tensor) -> int | None:
        """Where the tensor stands, written now if it is new; None when there is no room for it."""
        place = self._places.get(tensor_key(tensor))
        if place is not None:
            return place
        step = ALIGNED if self.aligned else tensor.element_size()
        start = -(-self.used // step) * step
        stop = start + tensor.numel() * tensor.element_size()
        if stop > len(self.memory):
            return None
        _view(self.memory, start, tensor.dtype, tensor.shape).copy_(tensor)
        self.used = stop
        self._places[tensor_key(tensor)] = start
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


def pack(thing: Any, buffer: TensorBuffer, broadcast: TensorBuffer | None = None) -> bytes:
    """Pickle `thing` with its tensors in the broadcast buffer, else in the other, else in the pickle itself."""

    def place(tensor: Tensor) -> tuple[str, int] | None:
        at = broadcast.place(tensor) if broadcast is not None else None
        if at is not None:
            return "broadcast", at
        at = buffer.place(tensor)
        return None if at is None else ("buffer", at)

    file = io.BytesIO()
    _Packer(file, place).dump(thing)
    return file.getvalue()


def unpack(data: bytes, buffer: Tensor, broadcast: Tensor | None = None) -> Any:
    """What `pack` was given; its tensors are views of the two buffers' memory."""
    memories = {"buffer": buffer} if broadcast is None else {"buffer": buffer, "broadcast": broadcast}
    return _Unpacker(io.BytesIO(data), memories).load()


class GrowingBuffer(TensorBuffer):
    """A buffer that is as long as what is written to it, until it is sealed.

    `aligned` tensors stand at the same distance from a multiple of 64 bytes as they did, for the last bits of a matrix
    product may depend on that; the others follow each other without a gap.
    """

    def __init__(self, *, aligned: bool = True) -> None:
        super().__init__(torch.empty(0, dtype=torch.uint8), aligned=aligned)
        self._sealed = False

    def place(self, tensor: Tensor) -> int | None:
        """Where the tensor will stand; None when it is new and the buffer is sealed."""
        place = self._places.get(tensor_key(tensor))
        if place is not None or self._sealed:
            return place
        step, away = (ALIGNED, tensor.data_ptr()) if self.aligned else (tensor.element_size(), 0)
        start = self.used + (away - self.used) % step
        self.used = start + tensor.numel() * tensor.element_size()
        self._places[tensor_key(tensor)] = start
        self._alive.append(tensor)
        return start

    def seal(self) -> Bytes:
        """The bytes `(used,)` of all that was put in; nothing more finds room."""
        self._sealed = True
        memory = torch.empty(self.used, dtype=torch.uint8)
        for tensor in self._alive:
            start = self._places[tensor_key(tensor)]
            stop = start + tensor.numel() * tensor.element_size()
            memory[start:stop].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return memory.numpy()


def serialise(thing: Any, broadcast: GrowingBuffer | None = None, *, aligned: bool = True) -> tuple[bytes, Bytes]:
    """The thing as a pickle and the bytes of its tensors, but for those in the broadcast buffer."""
    buffer = GrowingBuffer(aligned=aligned)
    data = pack(thing, buffer, broadcast)
    return data, buffer.seal()


def deserialise(data: bytes, memory: Bytes, broadcast: Tensor | None = None) -> Any:
    """What `serialise` was given, its tensors in memory of their own."""
    return unpack(data, own_memory(memory), broadcast)


def own_memory(memory: Bytes) -> Tensor:
    """A copy of bytes that may be written to and that starts where torch's own memory does."""
    own = torch.empty(len(memory), dtype=torch.uint8)
    own.numpy()[:] = memory
    return own
