"""One-shot clustering (Ghosh, Hong, Yin, Ramchandran 2019): train alone, k-means on the models, then FedAvg inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.averaging import average_clusters, members_of
from coterie.methods.base import Assignment, ClusterInfo, Event, Info, method
from coterie.methods.needs import Needs
from coterie.methods.placing import lowest_loss
from coterie.methods.server import Server
from coterie.parameters import scatter
from coterie.randomness import derive
from coterie.snapshot import saved
from coterie.tasks import Collect, Train


@saved
class State:
    """Before the clustering the initial model `(1, d)` and no labels, then one model per cluster `(k, d)`."""

    models: Tensor
    labels: list[int]
    """The cluster of each of `clients`; empty before the clustering."""
    clients: tuple[str, ...]
    """The clients that have a place, in the order of the labels."""


@method("oneshot")
class OneShot:
    """Clients train alone, their models are clustered once by k-means, and each cluster then trains by itself.

    All clients take part in the first `warmup_rounds` rounds, whatever the participation, since k-means needs every
    one of them. Each cluster continues from its k-means centre. A client that comes later joins the cluster whose model
    has the lowest loss on its training data.
    """

    server_steps: ClassVar[bool] = True

    k: PositiveInt = 2
    """Number of clusters."""
    warmup_rounds: PositiveInt = 10
    """Rounds in which every client trains alone before the models are clustered."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """Weight of a client in its cluster's mean: one, or its number of samples."""
    n_init: Annotated[int, Field(ge=1, le=10_000)] = 10
    """How many times k-means restarts; the best result counts."""
    show_models: bool = False
    """On secure sums: let the server see each client's own model once, for k-means; the rounds after that are sums."""

    @property
    def needs(self) -> Needs:
        """The clients' own models, seen once, which show_models allows also where sums are secure."""
        instead = "give oneshot:show_models=true to show them once, before the rounds in clusters"
        return Needs("may" if self.show_models else "must", (Collect, Train), personal=True, instead=instead)

    def start(self, server: Server) -> State:
        if self.k > len(server.clients):
            raise ConfigError(f"k={self.k} with {len(server.clients)} clients: ask for at most one cluster per client")
        if self.warmup_rounds >= server.rounds:
            raise ConfigError(
                f"warmup_rounds={self.warmup_rounds} of {server.rounds} rounds: leave rounds for training in clusters"
            )
        return State(server.initial_model()[None], [], ())

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        return self._warm_up(state, t, server) if not state.labels else self._average(state, t, server)

    def _warm_up(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        """Every client trains alone and keeps its model; after the last of these rounds the models are collected."""
        everything, infos = server.layout.names, {client: ClusterInfo(1) for client in server.clients}
        for reply in server.ask(server.training_requests(server.clients, state.models[0], t, private=everything)):
            infos[reply.client] = ClusterInfo(1, reply.values["loss"])
        if t < self.warmup_rounds:
            return state, Info(list(infos.values()))
        task = Collect(state.models[0], everything, server.model_seed(), shown=self.show_models)
        collected = {reply.client: reply.vector for reply in server.ask_all(server.clients, task)}
        spans, models = server.layout.select(everything), state.models[0].repeat(len(server.clients), 1)
        for row, client in zip(models, server.clients, strict=True):
            own = collected.get(client)
            if own is not None:  # a client that is silent counts as untrained
                scatter(row, spans, own)
        return self._clustered(_clipped(models, state.models[0], server), server)

    def _clustered(self, models: Tensor, server: Server) -> tuple[State, Info]:
        """k-means on the clients' models; a cluster starts from its clients' mean."""
        from sklearn.cluster import KMeans

        means = KMeans(
            min(self.k, len(models)), n_init=self.n_init, random_state=derive(server.seed, "k-means") % 2**32
        )
        found = means.fit_predict(models[:, : server.layout.trainable].numpy())
        labels = [int(j) for j in np.unique(found, return_inverse=True)[1]]
        sizes = [labels.count(j) for j in range(max(labels) + 1)]
        centres = []
        for j in range(len(sizes)):
            own = [i for i, label in enumerate(labels) if label == j]
            given = [server.weight(server.clients[i], self.weighting) for i in own]
            if server.aggregation.rule == "mean":
                weights = torch.tensor(given, dtype=torch.float64)
                centres.append((weights @ models[own].double() / weights.sum()).to(models.dtype))
            else:
                centres.append(server.aggregation.center(models[own], given).to(models.dtype))
        told = ", each seen by the server this once" if self.show_models else ""
        event = Event("clustered", f"k-means on the clients' models{told}: clusters of {sizes}", {"sizes": sizes})
        state = State(torch.stack(centres), labels, tuple(server.clients))
        return state, Info([ClusterInfo(size) for size in sizes], [event])

    def _average(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        state, events = self._with_newcomers(state, server)
        cluster_of = dict(zip(state.clients, state.labels, strict=True))
        models, infos = average_clusters(server, t, state.models, cluster_of, self.weighting)
        return dataclasses.replace(state, models=models), Info(infos, events)

    def _with_newcomers(self, state: State, server: Server) -> tuple[State, list[Event]]:
        """The state with clients that came after the clustering, as far as they answer, and what happened."""
        known = set(state.clients)
        new = [client for client in server.clients if client not in known]
        events = []
        for client, j in (self.place(state, new, server) if new else {}).items():
            state = State(state.models, [*state.labels, j], (*state.clients, client))
            events.append(Event("joined", f"{client} joined cluster {j}", {"client": client, "cluster": j}))
        return state, events

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The cluster whose model has the lowest loss on each newcomer's data."""
        return lowest_loss(dict(enumerate(state.models)), clients, server)

    def assignment(self, state: State, server: Server) -> Assignment:
        if not state.labels:
            alone = [(client,) for client in server.clients]
            return Assignment([state.models[0]] * len(alone), alone, private=server.layout.names)
        cluster_of = dict(zip(state.clients, state.labels, strict=True))
        largest = max(range(len(state.models)), key=state.labels.count)  # serves those that have no place yet
        members = members_of(dict.fromkeys(server.clients, largest) | cluster_of, server.clients, len(state.models))
        return Assignment(list(state.models), members)


def _clipped(models: Tensor, start: Tensor, server: Server) -> Tensor:
    """The clients' models `(clients, d)`, none farther from where all began than the aggregation allows."""
    norms = torch.linalg.vector_norm((models - start)[:, : server.layout.trainable], dim=1).tolist()
    bound = server.aggregation.bounds({0: norms})[0]
    for row, client, norm in zip(models, server.clients, norms, strict=True):
        if norm > bound:
            row.copy_(start + (row - start) * (bound / norm))
            server.cut.add(client)
    return models
