"""What a Ray actor is: one thread that does blocks of orders, with shards of the federation at hand."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from coterie.engines.crates import Bytes, boxed, own_memory, unboxed
from coterie.engines.shards import client_bytes, unboxed_shard
from coterie.engines.workers import done
from coterie.federation import Client
from coterie.messages import Worksite
from coterie.workbench import Workbench


class Errand(NamedTuple):
    """A block on its way to an actor: orders, states and bill, packed, and the shards that hold its clients."""

    run: int
    data: bytes
    memory: Bytes
    shards: dict[int, Any]
    """Numbers of the shards, and references to them."""


class Hand:
    """What an actor does: blocks, one at a time on one thread. It keeps `kept_bytes` of shards between blocks."""

    def __init__(self, make_bench: Callable[[], Workbench], kept_bytes: int) -> None:
        torch.set_num_threads(1)
        self.bench = make_bench()
        self.kept_bytes = kept_bytes
        self.ray: Any = importlib.import_module("ray")
        self.shards: dict[int, dict[str, Client]] = {}
        self._board = (-1, torch.empty(0, dtype=torch.uint8))

    def pid(self) -> int:
        """The actor's process: an answer shows that it has started."""
        return os.getpid()

    def do(self, errand: Errand, board: Bytes) -> tuple[bytes, Bytes, list[int]]:
        """A block's replies and the clients' states after it, packed, and the numbers of the shards kept here."""
        if self._board[0] != errand.run:
            self._board = (errand.run, own_memory(board))
        orders, states, bill = unboxed(errand.data, errand.memory, self._board[1])
        clients = self._clients(errand.shards)
        sites = {order.client: Worksite(clients[order.client], states.get(order.client, {})) for order in orders}
        share = done(orders, bill, sites, self.bench)
        after = {client: dict(site.state) for client, site in sites.items() if site.state}
        self._tidy()
        return *boxed((share, after), aligned=False), list(self.shards)

    def _clients(self, shards: Mapping[int, Any]) -> dict[str, Client]:
        """The clients in these shards; those that are not here are fetched."""
        missing = [number for number in shards if number not in self.shards]
        for number, shard in zip(missing, self.ray.get([shards[number] for number in missing]), strict=True):
            self.shards[number] = {client.id: client for client in unboxed_shard(*shard)}
        return {name: client for number in shards for name, client in self.shards[number].items()}

    def _tidy(self) -> None:
        """Drop what does not fit. Clients come round and round, so that what came first stays."""
        sizes = {number: sum(map(client_bytes, shard.values())) for number, shard in self.shards.items()}
        while sum(sizes.values()) > self.kept_bytes:
            number, _ = self.shards.popitem()
            del sizes[number]
