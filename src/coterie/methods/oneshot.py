"""One-shot clustering (Ghosh, Hong, Yin, Ramchandran 2019): train alone, k-means on the models, then FedAvg inside."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import torch
from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass
from sklearn.cluster import KMeans
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.base import Assignment, ClusterInfo, Event, Info, method
from coterie.methods.server import Server, Tally, moved
from coterie.randomness import derive
from coterie.snapshot import saved
from coterie.tasks import NUMBER, Order, Train


@saved
@dataclasses.dataclass(frozen=True)
class State:
    """Before the clustering one model a client `(clients, d)` and no labels, then one a cluster `(k, d)`."""

    models: Tensor
    labels: list[int]
    """The cluster of each client, in the order of the server's clients; empty before the clustering."""


@method("oneshot")
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class OneShot:
    """Clients train alone, their models are clustered once by k-means, and each cluster then trains by itself.

    All clients take part in the first `warmup_rounds` rounds, whatever the participation, since k-means needs every
    one of them. Each cluster goes on from its k-means centre.
    """

    k: PositiveInt = 2
    """Number of clusters."""
    warmup_rounds: PositiveInt = 10
    """Rounds in which every client trains alone before the models are clustered."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """Weight of a client in its cluster's mean: one, or its number of samples."""
    n_init: PositiveInt = 10
    """How many times k-means starts anew; the best result counts."""

    def start(self, server: Server) -> State:
        if self.k > len(server.clients):
            raise ConfigError(f"k={self.k} with {len(server.clients)} clients: ask for at most one cluster a client")
        if self.warmup_rounds >= server.rounds:
            raise ConfigError(
                f"warmup_rounds={self.warmup_rounds} of {server.rounds} rounds: leave rounds for training in clusters"
            )
        return State(server.initial_model().repeat(len(server.clients), 1), [])

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        return self._warm_up(state, t, server) if not state.labels else self._average(state, t, server)

    def _warm_up(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        row = {client: i for i, client in enumerate(server.clients)}
        how = server.schedule.at(t)
        orders = [Order(c, Train(state.models[i], how, server.seed_of(t, c))) for c, i in row.items()]
        models = state.models.clone()
        infos = [ClusterInfo(1) for _ in row]
        for reply in server.ask(orders):
            assert reply.vector is not None
            models[row[reply.client]] += reply.vector
            infos[row[reply.client]] = ClusterInfo(1, reply.values["loss"], reply.norm, reply.norm)
        # Training alone sends nothing: the first model goes down once, the trained one comes up once.
        server.ledger.read()
        whole = NUMBER * models.numel()
        server.ledger.down += whole if t == 1 else 0
        if t < self.warmup_rounds:
            return State(models, []), Info(infos)
        server.ledger.up += whole
        return self._clustered(models, server)

    def _clustered(self, models: Tensor, server: Server) -> tuple[State, Info]:
        """k-means on the clients' models; a cluster starts from its clients' mean."""
        means = KMeans(self.k, n_init=self.n_init, random_state=derive(server.seed, "k-means") % 2**32)
        found = means.fit_predict(models[:, : server.engine.layout.trainable].numpy())
        labels = [int(j) for j in np.unique(found, return_inverse=True)[1]]
        sizes = [labels.count(j) for j in range(max(labels) + 1)]
        centres = []
        for j in range(len(sizes)):
            own = [i for i, label in enumerate(labels) if label == j]
            weights = torch.tensor([server.weight(server.clients[i], self.weighting) for i in own], dtype=torch.float64)
            centres.append((weights @ models[own].double() / weights.sum()).to(models.dtype))
        event = Event("clustered", f"k-means on the clients' models: clusters of {sizes}", {"sizes": sizes})
        return State(torch.stack(centres), labels), Info([ClusterInfo(size) for size in sizes], [event])

    def _average(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        cluster = dict(zip(server.clients, state.labels, strict=True))
        how, rows = server.schedule.at(t), [row.clone() for row in state.models]
        orders = [Order(c, Train(rows[cluster[c]], how, server.seed_of(t, c))) for c in server.participants(t)]
        tallies = [Tally(state.models.shape[1]) for _ in state.models]
        for reply in server.ask(orders):
            tallies[cluster[reply.client]].add(reply, server.weight(reply.client, self.weighting))
        models = [moved(model, tally.mean()) for model, tally in zip(state.models, tallies, strict=True)]
        trainable = server.engine.layout.trainable
        infos = [
            ClusterInfo(
                state.labels.count(j), tally.mean_loss(), float(tally.mean()[:trainable].norm()), tally.max_norm
            )
            for j, tally in enumerate(tallies)
        ]
        return State(torch.stack(models), state.labels), Info(infos)

    def assignment(self, state: State, server: Server) -> Assignment:
        if not state.labels:
            return Assignment(list(state.models), [(client,) for client in server.clients])
        members: list[list[str]] = [[] for _ in state.models]
        for client, j in zip(server.clients, state.labels, strict=True):
            members[j].append(client)
        return Assignment(list(state.models), members)
