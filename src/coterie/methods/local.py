"""Local training: every client by itself, the baseline that shares nothing."""

from __future__ import annotations

import dataclasses

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.messages import Order
from coterie.methods.base import Assignment, ClusterInfo, Info, method
from coterie.methods.server import Server
from coterie.snapshot import saved
from coterie.tasks import Train


@saved
@dataclasses.dataclass(frozen=True)
class State:
    """One model `(d,)` for each of `clients`, those that left included, so that they go on when they return."""

    models: Tensor
    clients: tuple[str, ...]


@method("local")
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Local:
    """A model for each client, trained on its own data alone; nothing is exchanged."""

    def start(self, server: Server) -> State:
        return State(server.initial_model().repeat(len(server.clients), 1), tuple(server.clients))

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        state = with_newcomers(state, server)
        row = {client: i for i, client in enumerate(state.clients)}
        how = server.schedule.at(t)
        orders = [Order(c, Train(state.models[row[c]], how, server.seed_of(t, c))) for c in server.participants(t)]
        models = state.models.clone()
        infos = {client: ClusterInfo(1) for client in server.clients}
        for reply in server.ask(orders):
            assert reply.vector is not None
            models[row[reply.client]] += reply.vector
            infos[reply.client] = ClusterInfo(1, reply.values["loss"], reply.norm, reply.norm)
        server.ledger.read()  # the models never leave their clients: no bytes are sent
        return State(models, state.clients), Info(list(infos.values()))

    def assignment(self, state: State, server: Server) -> Assignment:
        state = with_newcomers(state, server)
        row = {client: i for i, client in enumerate(state.clients)}
        return Assignment([state.models[row[c]] for c in server.clients], [(client,) for client in server.clients])


def with_newcomers(state: State, server: Server) -> State:
    """The state with a fresh model for every client that was not here before."""
    known = set(state.clients)
    new = tuple(client for client in server.clients if client not in known)
    if not new:
        return state
    fresh = server.initial_model().repeat(len(new), 1)
    return State(torch.cat([state.models, fresh]), state.clients + new)
