"""A Ray actor: one thread that does blocks of requests, with shards of the federation at hand.

A shard holds neighbouring clients and is small enough to be sent to whoever lacks it.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.engines.buffers import ALIGNED, Bytes, deserialise, own_memory, serialise, unpack
from coterie.engines.heap import keep_freed_memory
from coterie.federation import PARTS, Client, Split
from coterie.tasks.base import ClientContext, perform
from coterie.trainers.base import Trainer
from coterie.trainers.batched import BatchedTrainer

SHARD_BYTES = 2**22
"""Data in a shard: little, so that one client of it costs little, and yet ten thousand clients are not many shards."""


class BlockRequest(NamedTuple):
    """A block on its way to an actor: requests, states and reduction, packed, and the shards that hold its clients."""

    run: int
    data: bytes
    memory: Bytes
    shards: dict[int, Any]
    """Numbers of the shards, and references to them."""


class RayWorker:
    """What an actor does: blocks, one at a time on one thread. It keeps `kept_bytes` of shards between blocks."""

    def __init__(self, make_trainer: Callable[[], Trainer], kept_bytes: int) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        self.trainer = make_trainer()
        # A user's module or metric may write to what it is given, which the store's memory would not survive.
        self._in_place = isinstance(self.trainer, BatchedTrainer) and not self.trainer.metrics
        self.kept_bytes = kept_bytes
        self.ray: Any = importlib.import_module("ray")
        self.shards: dict[int, dict[str, Client]] = {}
        self._broadcast = (-1, torch.empty(0, dtype=torch.uint8))

    def pid(self) -> int:
        """The actor's process: an answer shows that it has started."""
        return os.getpid()

    def do(self, block: BlockRequest, broadcast: Bytes) -> tuple[bytes, Bytes, list[int]]:
        """A block's replies and the clients' states after it, packed, and the numbers of the shards kept here."""
        if self._broadcast[0] != block.run:
            self._broadcast = (block.run, own_memory(broadcast))
        requests, states, reduce = deserialise(block.data, block.memory, self._broadcast[1])
        clients = self._clients(block.shards)
        contexts = {r.client: ClientContext(clients[r.client], states.get(r.client, {})) for r in requests}
        done = perform(requests, contexts, self.trainer, reduce)
        after = {client: dict(context.state) for client, context in contexts.items() if context.state}
        self._tidy()
        return *serialise((done, after), aligned=False), list(self.shards)

    def _clients(self, shards: Mapping[int, Any]) -> dict[str, Client]:
        """The clients in these shards; those that are not here are fetched."""
        missing = [number for number in shards if number not in self.shards]
        for number, shard in zip(missing, self.ray.get([shards[number] for number in missing]), strict=True):
            clients = deserialise_shard(*shard, in_place=self._in_place)
            self.shards[number] = {client.id: client for client in clients}
        return {name: client for number in shards for name, client in self.shards[number].items()}

    def _tidy(self) -> None:
        """Drop what does not fit. Clients come round and round, so that what came first stays."""
        sizes = {number: sum(map(client_bytes, shard.values())) for number, shard in self.shards.items()}
        while sum(sizes.values()) > self.kept_bytes:
            number, _ = self.shards.popitem()
            del sizes[number]


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


def serialise_shard(clients: Sequence[Client]) -> tuple[bytes, Bytes]:
    """Clients ready to travel, with all that their data says to a kernel: its places and the order of its numbers."""
    laid = {id(t): _laid(t) for client in clients for part in PARTS for t in _tensors(client.part(part))}
    rows = [
        (client.id, [tuple(laid[id(t)] for t in _tensors(client.part(part))) for part in PARTS]) for client in clients
    ]
    return serialise(rows)


def deserialise_shard(data: bytes, memory: Bytes, *, in_place: bool = False) -> list[Client]:
    """The clients in a shard, without their hidden groups, which no client needs for its work.

    `in_place` leaves their data where it lies, in Ray's store: memory that the actors of a machine share, and that none
    may write to.
    """
    clients = []
    for client_id, splits in unpack(data, _as_tensor(memory) if in_place else own_memory(memory)):
        parts = [Split(x.permute(x_back), y.permute(y_back)) for (x, x_back), (y, y_back) in splits]
        clients.append(Client(client_id, *parts))  # type: ignore[arg-type]  # as many as there are PARTS
    return clients


def _as_tensor(memory: Bytes) -> Tensor:
    """The bytes themselves; a copy where they do not begin as torch's own memory does: last bits may depend on that."""
    if memory.ctypes.data % ALIGNED:
        return own_memory(memory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's, that it cannot forbid writing
        return torch.from_numpy(memory)


def _tensors(split: Split) -> tuple[Tensor, Tensor]:
    return split.x, split.y


def _laid(tensor: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The tensor with its dimensions as they lie in memory, and how to turn them back: images may lie by pixel."""
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dim: -strides[dim])
    back = tuple(order.index(dim) for dim in range(tensor.ndim))
    return (tensor if order == list(range(tensor.ndim)) else tensor.permute(order)), back
