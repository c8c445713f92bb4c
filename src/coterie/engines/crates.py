"""How tensors travel to other machines: any number of them in one piece of memory, at the places torch knows them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.engines.parcels import ALIGNED, Shelf, pack, unpack

Bytes = npt.NDArray[np.uint8]


class Crate(Shelf):
    """A shelf that is as long as what is put on it, until it is sealed.

    `aligned` tensors stand at the same distance from a multiple of 64 bytes as they did, for the last bits of a matrix
    product may depend on that; the others follow each other without a gap.
    """

    def __init__(self, *, aligned: bool = True) -> None:
        super().__init__(torch.empty(0, dtype=torch.uint8), aligned=aligned)
        self._sealed = False

    def place(self, tensor: Tensor) -> int | None:
        """Where the tensor will stand; None when it is new and the crate is sealed."""
        place = self._places.get(id(tensor))
        if place is not None or self._sealed:
            return place
        step, away = (ALIGNED, tensor.data_ptr()) if self.aligned else (tensor.element_size(), 0)
        start = self.used + (away - self.used) % step
        self.used = start + tensor.numel() * tensor.element_size()
        self._places[id(tensor)] = start
        self._alive.append(tensor)
        return start

    def seal(self) -> Bytes:
        """The bytes `(used,)` of all that was put in; nothing more finds room."""
        self._sealed = True
        memory = torch.empty(self.used, dtype=torch.uint8)
        for tensor in self._alive:
            start = self._places[id(tensor)]
            stop = start + tensor.numel() * tensor.element_size()
            memory[start:stop].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        return memory.numpy()


def boxed(thing: Any, board: Crate | None = None, *, aligned: bool = True) -> tuple[bytes, Bytes]:
    """The thing as a pickle and the bytes of its tensors, but for those that are on the board."""
    crate = Crate(aligned=aligned)
    data = pack(thing, crate, board)
    return data, crate.seal()


def unboxed(data: bytes, memory: Bytes, board: Tensor | None = None) -> Any:
    """What `boxed` was given, its tensors in memory of their own."""
    return unpack(data, own_memory(memory), board)


def own_memory(memory: Bytes) -> Tensor:
    """A copy of bytes that may be written to and that starts where torch's own memory does."""
    own = torch.empty(len(memory), dtype=torch.uint8)
    own.numpy()[:] = memory
    return own
