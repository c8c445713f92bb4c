"""What of the clients' training is compared: updates, steps along full gradients, or keyed projections of updates.

Everything that is compared is fresh, of one kind, and made at one model: a cluster's members, the edges of the tree,
and newcomers alike. With a projection the server sees no single update: means come from sums.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from coterie.errors import ConfigError, RunError
from coterie.methods.aggregation import vector_of
from coterie.methods.server import Server
from coterie.privacy.projection import Compare, CompareHalves, check_width
from coterie.snapshot import saved
from coterie.tasks import HalfUpdates, Reply, Request, Task
from coterie.trainers.base import Training

Kind = Literal["update", "gradient", "projection"]


class NoUpdate(RunError):
    """A newcomer that cannot be placed, because it gave no update."""

    def __init__(self, client: str) -> None:
        super().__init__(f"client {client!r} gave no update to be placed by: see the faults of the round")


class ComparedHalves(NamedTuple):
    """The two half-updates of clients from one model: as they are compared, and themselves where they may be seen."""

    clients: tuple[str, ...]
    vectors: Tensor
    """(2, clients, w)"""
    updates: Tensor | None
    """(2, clients, d)"""


@saved
class Compared:
    """One kind of vector for everything that is compared in a run."""

    kind: Kind = "update"
    width: int = 0

    @classmethod
    def parse(cls, text: str) -> Compared:
        """The kind as an option writes it: "update", "gradient" or "projection(1024)"."""
        found = re.fullmatch(r"projection\((\d+)\)", text.replace(" ", ""))
        if found and int(found[1]):
            return cls("projection", int(found[1]))
        if text not in ("update", "gradient"):
            raise ConfigError(f"compare={text!r}: expected update, gradient or, for example, projection(1024)")
        return cls("gradient" if text == "gradient" else "update")

    @property
    def tasks(self) -> tuple[type[Task], ...]:
        """What clients are asked for in place of their updates."""
        return (Compare, CompareHalves) if self.kind == "projection" else ()

    def check(self, server: Server) -> None:
        """Refuse a run in which this cannot be compared."""
        if self.kind == "projection":
            check_width(self.width, server.layout.trainable)
            if server.aggregation.rule != "mean":
                raise ConfigError("compare=projection goes with aggregate='mean': other rules need single updates")

    def training(self, t: int, server: Server) -> Training:
        """How clients train for it: as in the round, or one step along the full gradient."""
        how = server.schedule.at(t)
        return replace(how, steps=1, batch_size=None, optimizer="sgd") if self.kind == "gradient" else how

    def of_members(
        self, members: Sequence[str], model: Tensor, t: int, server: Server, replies: Sequence[Reply] | None = None
    ) -> dict[str, Tensor]:
        """The vectors of clients at one model, of those that give a finite one.

        `replies` are those of this round's participants to training from the same model: they are not asked again.
        """
        if self.kind == "projection":
            return self._projections(members, model, t, server)
        if self.kind == "gradient" or replies is None:
            return self._finite(self._trained(members, model, t, server), server)
        asked = set(server.participants(t))
        missing = [client for client in members if client not in asked]
        known = [reply for reply in replies if reply.client in members]
        return self._finite(known + self._trained(missing, model, t, server), server)

    def _trained(self, clients: Sequence[str], model: Tensor, t: int, server: Server) -> list[Reply]:
        """The clients' replies to training from the model; none where no update is finite."""
        found: list[Reply] = []
        if clients:
            with contextlib.suppress(RunError):
                found += server.ask(server.training_requests(clients, model, t, self.training(t, server)))
        return found

    @staticmethod
    def _finite(replies: Sequence[Reply], server: Server) -> dict[str, Tensor]:
        """The trainable part of the clients' vectors that are finite."""
        width = server.layout.trainable
        return {r.client: r.vector[:width] for r in replies if r.vector is not None and math.isfinite(r.norm)}

    def _projections(self, members: Sequence[str], model: Tensor, t: int, server: Server) -> dict[str, Tensor]:
        """The keyed projections of the clients' updates."""
        how = self.training(t, server)
        requests = [Request(c, Compare(model, how, server.seed_of(t, c), self.width)) for c in members]
        return {reply.client: torch.tensor(reply.values["projection"]) for reply in server.ask(requests)}

    def of_newcomer(self, client: str, model: Tensor, t: int, server: Server) -> Tensor:
        """The vector that a newcomer is placed by at a node's model."""
        found = self.of_members([client], model, t, server)
        if client not in found:
            raise NoUpdate(client)
        return found[client]

    def of_halves(self, clients: Sequence[str], model: Tensor, t: int, server: Server) -> ComparedHalves:
        """The clients' half-updates from one model, of those that have two samples and whose vectors are finite."""
        width, projected = server.layout.trainable, self.kind == "projection"
        found: dict[str, Tensor] = {}
        for reply in server.ask([Request(c, self._half_task(c, model, t, server)) for c in clients]):
            vectors = reply.values["projections"] if projected else vector_of(reply).reshape(2, -1)
            if reply.samples > 1 and bool(torch.isfinite(vectors[:, :width]).all()):
                found[reply.client] = vectors
        stacked = torch.stack(list(found.values()), 1) if found else torch.zeros(2, 0, width)
        if projected:
            return ComparedHalves(tuple(found), stacked, None)
        return ComparedHalves(tuple(found), stacked[..., :width], stacked)

    def _half_task(self, client: str, model: Tensor, t: int, server: Server) -> HalfUpdates:
        seeds = server.seed_of(t, client, "half-updates"), halves_seed(server, client)
        if self.kind == "projection":
            return CompareHalves(model, self.training(t, server), *seeds, self.width)
        return HalfUpdates(model, self.training(t, server), *seeds)


def halves_seed(server: Server, client: str) -> int:
    """The seed of a client's halves, the same in all rounds."""
    return server.seed_of(0, client, "halves")
