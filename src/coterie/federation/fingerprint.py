"""A short hash of a federation: who the clients are and what they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from coterie.federation.base import Federation
from coterie.federation.changing import ChangingFederation
from coterie.federation.client import JOINED, PARTS, joined

PIECE = 2**20
"""Numbers of a client's data that are added up at once."""


def fingerprint(federation: Federation) -> str:
    """A short hash of who the clients are and what they hold, so that a run resumes with the same data only."""
    digest = hashlib.blake2b(digest_size=12)
    first = federation.clients[0].train
    digest.update(f"{tuple(first.x.shape[1:])}/{first.x.dtype}/{tuple(first.y.shape[1:])}/{first.y.dtype};".encode())
    digest.update("/".join(f"{client.id};{len(client.train)}" for client in federation).encode())
    if isinstance(federation, ChangingFederation):
        later = [f"{start}:{fingerprint(phase)}" for start, phase in federation.phases.items() if start > 1]
        digest.update("/".join(later).encode())
    for part in PARTS:
        digest.update(np.array([len(client.part(part)) for client in federation]).tobytes())
        for what in ("x", "y"):
            for values in _small_together(getattr(client.part(part), what) for client in federation):
                digest.update(_digest_of(values))
    return digest.hexdigest()


def _small_together(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors in turn: small ones joined to larger, because hashing a tensor costs more than its few numbers."""
    small: list[Tensor] = []
    room = JOINED
    for tensor in tensors:
        if tensor.numel() < JOINED:
            small.append(tensor)
            room -= tensor.numel()
            if room > 0:
                continue
            yield joined(small)
        else:
            if small:
                yield joined(small)
            yield tensor
        small, room = [], JOINED
    if small:
        yield joined(small)


def _digest_of(values: Tensor) -> bytes:
    """What identifies a tensor: all of its bytes, or of a large one the sum of its bit patterns and a sample.

    A sum is as fast as memory, and one changed number changes it.
    """
    values = values.contiguous()
    if values.numel() <= 2 * JOINED:
        return values.numpy().tobytes()
    bits = values.view(torch.int32 if values.element_size() == 4 else torch.int64)
    # In pieces, because torch widens what it sums in memory.
    total = sum(int(piece.sum(dtype=torch.int64)) for piece in bits.flatten().split(PIECE))
    return f"{(total + 2**63) % 2**64 - 2**63};".encode() + values[:1].numpy().tobytes()
