"""A federation in shards: neighbouring clients together, each shard small enough to be sent to whoever lacks it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from coterie.engines.crates import Bytes, boxed, unboxed
from coterie.federation import PARTS, Client, Split

SHARD_BYTES = 2**22
"""Data in a shard: little, so that one client of it costs little, and yet ten thousand clients are not many shards."""


def client_bytes(client: Client) -> int:
    """Bytes of a client's data."""
    splits = (client.part(part) for part in PARTS)
    return sum(values.numel() * values.element_size() for split in splits for values in (split.x, split.y))


def cut(clients: Iterable[Client], shard_bytes: int) -> list[list[Client]]:
    """The clients in shards of `shard_bytes`, in their order; a client with more data has a shard to itself."""
    shards: list[list[Client]] = []
    room = 0
    for client in clients:
        size = client_bytes(client)
        if not shards or size > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(client)
        room -= size
    return shards


def boxed_shard(clients: Sequence[Client]) -> tuple[bytes, Bytes]:
    """Clients ready to travel, with all that their data says to a kernel: its places and the order of its numbers."""
    laid = {id(t): _laid(t) for client in clients for part in PARTS for t in _tensors(client.part(part))}
    rows = [
        (client.id, [tuple(laid[id(t)] for t in _tensors(client.part(part))) for part in PARTS]) for client in clients
    ]
    return boxed(rows)


def unboxed_shard(data: bytes, memory: Bytes) -> list[Client]:
    """The clients in a shard, without their hidden groups, which no client needs for its work."""
    clients = []
    for client_id, splits in unboxed(data, memory):
        parts = [Split(x.permute(x_back), y.permute(y_back)) for (x, x_back), (y, y_back) in splits]
        clients.append(Client(client_id, *parts))  # type: ignore[arg-type]  # as many as there are PARTS
    return clients


def _tensors(split: Split) -> tuple[Tensor, Tensor]:
    return split.x, split.y


def _laid(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The tensor with its dimensions as they lie in memory, and how to turn them back: images may lie by pixel."""
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: -strides[dim])
    back = tuple(order.index(dim) for dim in range(tensor.ndim))
    return (tensor if order == list(range(tensor.ndim)) else tensor.permute(order)), back
