"""One-shot clustering (Ghosh, Hong, Yin, Ramchandran 2019): train alone, k-means on the models, then FedAvg inside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.averaging import FixedClusters, averaged, fixed_assignment, joined, without_cluster
from coterie.methods.base import Assignment, ClusterInfo, Event, Info, method
from coterie.methods.local import alone, train_alone
from coterie.methods.needs import Needs
from coterie.methods.placing import lowest_loss
from coterie.methods.server import Server
from coterie.parameters import scatter
from coterie.randomness import derive
from coterie.snapshot import saved
from coterie.tasks import Collect, Train


@saved
class State:
    """The initial model, which is no client's cluster yet, and then the clusters that k-means found."""

    clusters: FixedClusters
    clustered: bool


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
        return State(FixedClusters(server.initial_model()[None], {}), clustered=False)

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        if not state.clustered:
            return self._warm_up(state, t, server)
        late = without_cluster(state.clusters, server)
        clusters, events = joined(state.clusters, self.place(state, late, server) if late else {})
        clusters, info = averaged(clusters, t, server, self.weighting, events)
        return State(clusters, clustered=True), info

    def _warm_up(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        """Every client trains alone and keeps its model; after the last of these rounds the models are collected."""
        start = state.clusters.models[0]
        info = train_alone(start, server.clients, t, server)
        if t < self.warmup_rounds:
            return state, info
        return self._clustered(_clipped(self._collected(start, server), start, server), server)

    def _collected(self, start: Tensor, server: Server) -> Tensor:
        """The clients' models `(clients, d)`; one that does not answer counts as untrained."""
        everything = server.layout.names
        task = Collect(start, everything, server.model_seed(), shown=self.show_models)
        collected = {reply.client: reply.vector for reply in server.ask_all(server.clients, task)}
        models = start.repeat(len(server.clients), 1)
        for row, client in zip(models, server.clients, strict=True):
            own = collected.get(client)
            if own is not None:
                scatter(row, server.layout.select(everything), own)
        return models

    def _clustered(self, models: Tensor, server: Server) -> tuple[State, Info]:
        """k-means on the clients' models; a cluster starts from its clients' mean."""
        from sklearn.cluster import KMeans

        seed = derive(server.seed, "k-means") % 2**32
        means = KMeans(min(self.k, len(models)), n_init=self.n_init, random_state=seed)
        found = means.fit_predict(models[:, : server.layout.trainable].numpy())
        labels: list[int] = np.unique(found, return_inverse=True)[1].tolist()
        centres, sizes = [], []
        for j in range(max(labels) + 1):
            own = [i for i, label in enumerate(labels) if label == j]
            weights = [server.weight(server.clients[i], self.weighting) for i in own]
            centres.append(server.aggregation.center(models[own], weights).to(models.dtype))
            sizes.append(len(own))
        shown = ", each seen by the server this once" if self.show_models else ""
        event = Event("clustered", f"k-means on the clients' models{shown}: clusters of {sizes}", {"sizes": sizes})
        clusters = FixedClusters(torch.stack(centres), dict(zip(server.clients, labels, strict=True)))
        return State(clusters, clustered=True), Info([ClusterInfo(size) for size in sizes], [event])

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The cluster whose model has the lowest loss on each newcomer's data."""
        return lowest_loss(state.clusters.by_id, clients, server)

    def assignment(self, state: State, server: Server) -> Assignment:
        if not state.clustered:
            return alone(state.clusters.models[0], server)
        return fixed_assignment(state.clusters, server)


def _clipped(models: Tensor, start: Tensor, server: Server) -> Tensor:
    """The clients' models `(clients, d)`, none farther from where all began than the aggregation allows."""
    norms = torch.linalg.vector_norm((models - start)[:, : server.layout.trainable], dim=1).tolist()
    bound = server.aggregation.bounds({0: norms})[0]
    for row, client, norm in zip(models, server.clients, norms, strict=True):
        if norm > bound:
            row.copy_(start + (row - start) * (bound / norm))
            server.cut.add(client)
    return models
