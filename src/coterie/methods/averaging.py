"""FedAvg inside each of several clusters: the round that most clustered methods share, and clusters that stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coterie.methods.aggregation import WeightedSum
from coterie.methods.base import Assignment, ClusterInfo, Event, Info
from coterie.methods.server import Server
from coterie.snapshot import saved


def average_clusters(
    server: Server,
    t: int,
    models: Tensor,
    cluster_of: Mapping[str, int],
    weighting: str = "samples",
    server_lr: float = 1.0,
) -> tuple[Tensor, list[ClusterInfo]]:
    """One round of FedAvg in every cluster.

    Args:
        server: the method's server.
        t: the round.
        models: the clusters' models `(k, d)`.
        cluster_of: the cluster of each client; clients that are not in it do not take part.
        weighting: "samples" or "uniform", the weight of a client in its cluster's mean.
        server_lr: how far the server follows the mean update.

    Returns:
        The models `(k, d)` after the round (a cluster none of whose members took part keeps its own), and what the
        server saw of each cluster.
    """
    rows = [row.clone() for row in models]  # requests hold tensors of their own, one per cluster
    asked = [client for client in server.participants(t) if client in cluster_of]
    requests = server.training_requests(asked, {client: rows[cluster_of[client]] for client in asked}, t)
    groups = [cluster_of[client] for client in asked]
    sums, _ = server.exchange(requests, groups, clusters=len(rows), weighting=weighting)
    pairs = enumerate(zip(rows, sums, strict=True))
    after = torch.stack([server.step(row, total, j, server_lr) for j, (row, total) in pairs])
    members = members_of(cluster_of, server.clients, len(rows))
    return after, [cluster_info(len(own), total, server) for own, total in zip(members, sums, strict=True)]


def cluster_info(members: int, total: WeightedSum, server: Server, cluster: int | None = None) -> ClusterInfo:
    """What the weighted sum of a cluster's updates shows of it."""
    norm = total.mean_norm(server.layout.trainable)
    return ClusterInfo(members, total.mean_loss(), norm, total.max_norm, cluster)


def members_of(cluster_of: Mapping[str, int], clients: Sequence[str], clusters: int) -> list[list[str]]:
    """The clients of each cluster, in the order of `clients`; those without a cluster are in none."""
    members: list[list[str]] = [[] for _ in range(clusters)]
    for client in clients:
        if client in cluster_of:
            members[cluster_of[client]].append(client)
    return members


def assignment_of(
    models: Tensor | Sequence[Tensor], members: Sequence[Sequence[str]], ids: Sequence[int] = ()
) -> Assignment:
    """The clusters that have clients, each with its model and its id; by default ids are positions."""
    known = ids or range(len(models))
    taken = [j for j, own in enumerate(members) if own]
    return Assignment([models[j] for j in taken], [members[j] for j in taken], ids=[known[j] for j in taken])


def mean_loss(sums: Sequence[WeightedSum]) -> float:
    """The mean training loss of all clients in several weighted sums; infinite where there is none."""
    weight = sum(total.weight for total in sums)
    return sum(total.loss for total in sums) / weight if weight else float("inf")


@saved
class FixedClusters:
    """The clusters' models `(k, d)`, and the cluster of every client that has one."""

    models: Tensor
    cluster_of: dict[str, int]

    @property
    def by_id(self) -> dict[int, Tensor]:
        """The models by the ids of their clusters."""
        return dict(enumerate(self.models))


def without_cluster(clusters: FixedClusters, server: Server) -> list[str]:
    """The clients that came after the clustering, or did not answer it."""
    return [client for client in server.clients if client not in clusters.cluster_of]


def joined(clusters: FixedClusters, places: Mapping[str, int]) -> tuple[FixedClusters, list[Event]]:
    """The clusters with clients that join them, and what happened."""
    events = [
        Event("joined", f"{client} joined cluster {j}", {"client": client, "cluster": j})
        for client, j in places.items()
    ]
    return FixedClusters(clusters.models, clusters.cluster_of | dict(places)), events


def averaged(
    clusters: FixedClusters, t: int, server: Server, weighting: str, events: Sequence[Event] = ()
) -> tuple[FixedClusters, Info]:
    """A round of FedAvg in every cluster."""
    models, infos = average_clusters(server, t, clusters.models, clusters.cluster_of, weighting)
    seen = [dataclasses.replace(info, id=j) for j, info in enumerate(infos) if info.members]
    return FixedClusters(models, clusters.cluster_of), Info(seen, events)


def fixed_assignment(clusters: FixedClusters, server: Server) -> Assignment:
    """Every client with its cluster's model; one that has no cluster yet is served by the largest."""
    cluster_of = clusters.cluster_of
    largest = max(range(len(clusters.models)), key=list(cluster_of.values()).count)
    everywhere = dict.fromkeys(server.clients, largest) | cluster_of
    return assignment_of(clusters.models, members_of(everywhere, server.clients, len(clusters.models)))
