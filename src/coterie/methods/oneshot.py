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
from coterie.messages import NUMBER, Order
from coterie.methods.base import Assignment, ClusterInfo, Event, Info, method
from coterie.methods.server import Server, Tally, moved
from coterie.randomness import derive
from coterie.snapshot import saved
from coterie.tasks import Evaluate, Train


@saved
@dataclasses.dataclass(frozen=True)
class State:
    """Before the clustering one model a client `(clients, d)` and no labels, then one a cluster `(k, d)`."""

    models: Tensor
    labels: list[int]
    """The cluster of each of `clients`; empty before the clustering."""
    clients: tuple[str, ...]
    """The clients that have a place, in the order of the models or labels."""


@method("oneshot")
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class OneShot:
    """Clients train alone, their models are clustered once by k-means, and each cluster then trains by itself.

    All clients take part in the first `warmup_rounds` rounds, whatever the participation, since k-means needs every
    one of them. Each cluster goes on from its k-means centre. A client that comes later joins the cluster whose model
    has the lowest loss on its training data.
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
        return State(server.initial_model().repeat(len(server.clients), 1), [], tuple(server.clients))

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        return self._warm_up(state, t, server) if not state.labels else self._average(state, t, server)

    def _warm_up(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        known, fresh = dict(zip(state.clients, state.models, strict=True)), server.initial_model()
        models = torch.stack([known.get(client, fresh) for client in server.clients])
        row = {client: i for i, client in enumerate(server.clients)}
        how = server.schedule.at(t)
        orders = [Order(c, Train(models[i].clone(), how, server.seed_of(t, c))) for c, i in row.items()]
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
            return State(models, [], tuple(server.clients)), Info(infos)
        server.ledger.up += whole
        return self._clustered(models, server)

    def _clustered(self, models: Tensor, server: Server) -> tuple[State, Info]:
        """k-means on the clients' models; a cluster starts from its clients' mean."""
        means = KMeans(
            min(self.k, len(models)), n_init=self.n_init, random_state=derive(server.seed, "k-means") % 2**32
        )
        found = means.fit_predict(models[:, : server.engine.layout.trainable].numpy())
        labels = [int(j) for j in np.unique(found, return_inverse=True)[1]]
        sizes = [labels.count(j) for j in range(max(labels) + 1)]
        centres = []
        for j in range(len(sizes)):
            own = [i for i, label in enumerate(labels) if label == j]
            weights = torch.tensor([server.weight(server.clients[i], self.weighting) for i in own], dtype=torch.float64)
            centres.append((weights @ models[own].double() / weights.sum()).to(models.dtype))
        event = Event("clustered", f"k-means on the clients' models: clusters of {sizes}", {"sizes": sizes})
        state = State(torch.stack(centres), labels, tuple(server.clients))
        return state, Info([ClusterInfo(size) for size in sizes], [event])

    def _average(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        state, events = self._with_newcomers(state, server)
        cluster = dict(zip(state.clients, state.labels, strict=True))
        how, rows = server.schedule.at(t), [row.clone() for row in state.models]
        asked = [client for client in server.participants(t) if client in cluster]
        orders = [Order(c, Train(rows[cluster[c]], how, server.seed_of(t, c))) for c in asked]
        tallies = [Tally(state.models.shape[1]) for _ in state.models]
        server.total(orders, tallies, self.weighting, [cluster[order.client] for order in orders])
        models = [moved(model, tally.mean()) for model, tally in zip(state.models, tallies, strict=True)]
        trainable = server.engine.layout.trainable
        sizes = [sum(cluster.get(client) == j for client in server.clients) for j in range(len(models))]
        infos = [
            ClusterInfo(size, tally.mean_loss(), float(tally.mean()[:trainable].norm()), tally.max_norm)
            for size, tally in zip(sizes, tallies, strict=True)
        ]
        return dataclasses.replace(state, models=torch.stack(models)), Info(infos, events)

    def _with_newcomers(self, state: State, server: Server) -> tuple[State, list[Event]]:
        """The state with clients that came after the clustering, as far as they answer, and what happened."""
        known = set(state.clients)
        new = [client for client in server.clients if client not in known]
        events = []
        for reply in server.ask_all(new, Evaluate(state.models, "train")):
            j = int(np.argmin(np.nan_to_num(reply.values["loss"], nan=np.inf)))
            state = State(state.models, [*state.labels, j], (*state.clients, reply.client))
            text = f"{reply.client} joined cluster {j}"
            events.append(Event("joined", text, {"client": reply.client, "cluster": j}))
        return state, events

    def assignment(self, state: State, server: Server) -> Assignment:
        if not state.labels:
            known = dict(zip(state.clients, state.models, strict=True))
            mean = state.models.double().mean(0).to(state.models.dtype)
            models = [known.get(client, mean) for client in server.clients]
            return Assignment(models, [(client,) for client in server.clients])
        cluster = dict(zip(state.clients, state.labels, strict=True))
        largest = max(range(len(state.models)), key=state.labels.count)  # serves those that have no place yet
        members: list[list[str]] = [[] for _ in state.models]
        for client in server.clients:
            members[cluster.get(client, largest)].append(client)
        return Assignment(list(state.models), members)
