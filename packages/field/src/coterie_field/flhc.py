"""FL+HC (Briggs, Fan, Andras 2020): FedAvg for some rounds, one hierarchical clustering of updates, FedAvg in clusters.

In the round of the clustering every client trains once from the same model. Each cluster then continues from that
model, moved by the mean of its members' updates, so that the round is not lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from coterie.errors import ConfigError, RunError
from coterie.methods import Assignment, Event, Info, Matrix, Needs, Server, cluster_info, method, saved
from coterie.methods.averaging import FixedClusters, averaged, fixed_assignment, joined, without_cluster
from coterie.methods.placing import lowest_loss
from coterie.methods.published import Paper
from coterie_field.agglomerative import Linkage, Metric, agglomerate, vector_distances
from coterie_field.papers import PAPERS


@saved
class State:
    """One cluster of all clients before the clustering, then those that it found."""

    clusters: FixedClusters
    clustered: bool


@method("flhc")
class FLHC:
    """FedAvg for some rounds, then one agglomerative clustering of all clients' updates, then FedAvg in each cluster.

    All clients take part in the round after the warm-up, whatever the participation. A client that comes later joins
    the cluster whose model has the lowest loss on its training data.
    """

    paper: ClassVar[Paper] = PAPERS["flhc"]
    server_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs("must")

    warmup_rounds: NonNegativeInt = 10
    """Rounds of FedAvg before the clustering."""
    metric: Metric = "l2"
    """Distance between updates: l1, l2, or one minus the cosine."""
    linkage: Linkage = "ward"
    """How far two clusters are: their nearest, farthest or mean pair, or Ward's growth of the sum of squares."""
    clusters: PositiveInt = 2
    """Number of clusters, where no threshold is given."""
    threshold: PositiveFloat | None = None
    """Clusters at this distance or nearer are merged, which decides their number; none: `clusters` does."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in a mean: its number of samples, or one."""

    def start(self, server: Server) -> State:
        if self.linkage == "ward" and self.metric != "l2":
            raise ConfigError(f"linkage='ward' with metric={self.metric!r}: Ward's sums of squares need metric=l2")
        if self.threshold is None and self.clusters > len(server.clients):
            raise ConfigError(f"clusters={self.clusters} with {len(server.clients)} clients: ask for at most one each")
        if self.warmup_rounds >= server.rounds:
            raise ConfigError(
                f"warmup_rounds={self.warmup_rounds} of {server.rounds} rounds: leave rounds for training in clusters"
            )
        return State(FixedClusters(server.initial_model()[None], dict.fromkeys(server.clients, 0)), clustered=False)

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        if not state.clustered and t > self.warmup_rounds:
            return self._clustered(state, t, server)
        late = without_cluster(state.clusters, server)
        places = {} if not late else self.place(state, late, server) if state.clustered else dict.fromkeys(late, 0)
        clusters, events = joined(state.clusters, places)
        clusters, info = averaged(clusters, t, server, self.weighting, events if state.clustered else ())
        return State(clusters, state.clustered), info

    def _clustered(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        """All clients train from the one model; the updates are clustered, and each cluster moves by its mean."""
        model = state.clusters.models[0]
        requests = server.training_requests(server.clients, model, t)
        replies = list(server.ask(requests, [0] * len(requests)))
        if not replies:
            raise RunError("no client sent an update to cluster by: see the faults of the run")
        updates = torch.stack([r.vector[: server.layout.trainable] for r in replies if r.vector is not None])
        distances = vector_distances(updates.numpy(), self.metric)
        clusters = self.clusters if self.threshold is None else None
        labels = agglomerate(distances, self.linkage, clusters=clusters, threshold=self.threshold).tolist()
        models, infos = [], []
        clients = tuple(reply.client for reply in replies)
        cluster_of = dict(zip(clients, labels, strict=True))
        for j in range(max(labels) + 1):
            own = [reply for reply in replies if cluster_of[reply.client] == j]
            total = server.summed(own, self.weighting)
            models.append(server.step(model, total.mean(), j))
            infos.append(cluster_info(len(own), total, server, j))
        sizes = [info.members for info in infos]
        event = Event("clustered", f"{self.linkage} linkage of the updates: clusters of {sizes}", {"sizes": sizes})
        names = {"l1": "l1 distance", "l2": "l2 distance", "cosine": "one minus the cosine"}
        matrix = Matrix("updates", clients, distances.astype(np.float32), f"{names[self.metric]} of updates", False)
        found = FixedClusters(torch.stack(models), cluster_of)
        return State(found, clustered=True), Info(infos, [event], matrices=[matrix])

    def assignment(self, state: State, server: Server) -> Assignment:
        return fixed_assignment(state.clusters, server)

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The cluster whose model has the lowest loss on each newcomer's data."""
        return lowest_loss(state.clusters.by_id, clients, server)
