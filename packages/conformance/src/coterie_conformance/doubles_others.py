"""Doubles of PACFL, FedCUAU and IFCA with a slip each: a short PACFL, and ours with one thing changed."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

from coterie.clustering import percentile_clusters
from coterie.methods import IFCA, Assignment, FedCUAU, Info, Server, average_clusters, members_of, saved
from coterie.tasks import LayerUpdate, Request
from coterie_field.subspaces import Subspaces


@saved
class Clusters:
    """The clusters' models `(k, d)`, and the cluster of each client."""

    models: Tensor
    cluster_of: dict[str, int]


@dataclasses.dataclass(frozen=True)
class PlainPACFL:
    """Clusters by the smallest principal angle between subspaces of clients' inputs; FedAvg in each."""

    slip: Literal["none", "entrywise arccos"] = "none"
    clusters: int = 4
    p: int = 3
    """Directions that a client sends."""

    def start(self, server: Server) -> Clusters:
        replies = server.ask_all(server.clients, Subspaces(self.p, per_class=False))
        bases = {reply.client: reply.values["bases"].double().numpy() for reply in replies}
        apart = np.array([[self.angle(a, b) for b in bases.values()] for a in bases.values()])
        tree = linkage(squareform((apart + apart.T) / 2, checks=False), "average")
        labels = fcluster(tree, self.clusters, "maxclust") - 1
        models = server.initial_model().repeat(int(labels.max()) + 1, 1)
        return Clusters(models, dict(zip(bases, labels.tolist(), strict=True)))

    def angle(self, one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
        """Degrees between two subspaces, given as orthonormal rows."""
        if one is other:
            return 0.0
        products = one @ other.T
        # The slip: products of single vectors, whose signs are arbitrary, in place of singular values.
        cosines = products if self.slip == "entrywise arccos" else np.linalg.svd(products, compute_uv=False)
        return float(np.degrees(np.arccos(np.clip(cosines, -1, 1)).min()))

    def round(self, state: Clusters, t: int, server: Server) -> tuple[Clusters, Info]:
        cluster_of = dict.fromkeys(server.clients, 0) | state.cluster_of
        models, infos = average_clusters(server, t, state.models, cluster_of)
        return Clusters(models, cluster_of), Info(infos)

    def assignment(self, state: Clusters, server: Server) -> Assignment:
        cluster_of = dict.fromkeys(server.clients, 0) | state.cluster_of
        return Assignment(list(state.models), members_of(cluster_of, server.clients, len(state.models)))


@dataclasses.dataclass(frozen=True)
class PlainCUAU:
    """FedCUAU, whose clusters are percentiles of ‖CU_k − AU‖."""

    slip: Literal["none", "1/N"] = "none"
    clusters: int = 2

    @property
    def inner(self) -> FedCUAU:
        """What does the rounds."""
        return FedCUAU(clusters=self.clusters, measure="update")

    def start(self, server: Server) -> Any:
        state = self.inner.start(server)
        model, init, how = server.initial_model(1), server.model_seed(1), server.schedule.at(1)
        asked = [
            Request(c, LayerUpdate(model, how, server.seed_of(1, c, "cuau"), "last", init)) for c in server.clients
        ]
        found = {reply.client: reply.vector for reply in server.ask(asked) if reply.vector is not None}
        updates = torch.stack(list(found.values())).double()
        weights = torch.tensor([server.weight(client, "samples") for client in found], dtype=torch.float64)
        mean = (weights / weights.sum()) @ updates
        if self.slip == "1/N":  # the slip: weights that sum to one, divided by the number of clients once more
            mean = mean / len(found)
        values = (updates - mean).norm(dim=1).tolist()
        labels = percentile_clusters(values, self.clusters).tolist()
        last = dict.fromkeys(server.clients, self.clusters - 1)
        return dataclasses.replace(
            state, cluster=last | dict(zip(found, labels, strict=True)), cuau=dict(zip(found, values, strict=True))
        )

    def round(self, state: Any, t: int, server: Server) -> tuple[Any, Info]:
        return self.inner.round(state, t, server)

    def assignment(self, state: Any, server: Server) -> Assignment:
        return self.inner.assignment(state, server)


@dataclasses.dataclass(frozen=True)
class PlainIFCA:
    """IFCA from random models."""

    slip: Literal["none", "equal starts", "idle to zero"] = "none"
    k: int = 4

    @property
    def inner(self) -> IFCA:
        """What does the rounds."""
        return IFCA(k=self.k, init="random")

    def start(self, server: Server) -> Any:
        state: Any = self.inner.start(server)
        if self.slip != "equal starts":
            return state
        # The slip: k copies of one model.
        return dataclasses.replace(state, models=state.models[:1].repeat(self.k, 1))

    def round(self, state: Any, t: int, server: Server) -> tuple[Any, Info]:
        reached, info = self.inner.round(state, t, server)
        after: Any = reached
        if self.slip != "idle to zero":
            return after, info
        # The slip: the sum of no models is zero, and so becomes the model that no client chose.
        idle = torch.tensor(after.choices.idle)[:, None] > 0
        return dataclasses.replace(after, models=torch.where(idle, 0.0, after.models)), info

    def assignment(self, state: Any, server: Server) -> Assignment:
        return self.inner.assignment(state, server)
