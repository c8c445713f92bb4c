"""Local training: every client by itself, the baseline that shares nothing."""

from __future__ import annotations

import dataclasses

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.methods.base import Assignment, ClusterInfo, Info, method
from coterie.methods.server import Server
from coterie.snapshot import saved
from coterie.tasks import Order, Train


@saved
@dataclasses.dataclass(frozen=True)
class State:
    """One model a client, `(clients, d)`, in the order of the server's clients."""

    models: Tensor


@method("local")
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Local:
    """A model for each client, trained on its own data alone; nothing is exchanged."""

    def start(self, server: Server) -> State:
        return State(server.initial_model().repeat(len(server.clients), 1))

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        row = {client: i for i, client in enumerate(server.clients)}
        how = server.schedule.at(t)
        orders = [Order(c, Train(state.models[row[c]], how, server.seed_of(t, c))) for c in server.participants(t)]
        models = state.models.clone()
        infos = [ClusterInfo(1) for _ in server.clients]
        for reply in server.ask(orders):
            assert reply.vector is not None
            models[row[reply.client]] += reply.vector
            infos[row[reply.client]] = ClusterInfo(1, reply.values["loss"], reply.norm, reply.norm)
        server.ledger.read()  # the models never leave their clients: no bytes are sent
        return State(models), Info(infos)

    def assignment(self, state: State, server: Server) -> Assignment:
        return Assignment(list(state.models), [(client,) for client in server.clients])
