"""FedAvg inside each of several clusters: the round that most clustered methods share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coterie.methods.aggregation import WeightedSum
from coterie.methods.base import ClusterInfo
from coterie.methods.server import Server


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
    rows = [row.clone() for row in models]
    asked = [client for client in server.participants(t) if client in cluster_of]
    requests = server.training_requests(asked, {client: rows[cluster_of[client]] for client in asked}, t)
    sums, _ = server.aggregate(requests, weighting, [cluster_of[client] for client in asked], len(rows))
    after = torch.stack(
        [server.step(row, total.mean(), j, server_lr) for j, (row, total) in enumerate(zip(rows, sums, strict=True))]
    )
    sizes = [sum(cluster_of.get(client) == j for client in server.clients) for j in range(len(rows))]
    return after, [cluster_info(size, total, server) for size, total in zip(sizes, sums, strict=True)]


def cluster_info(members: int, total: WeightedSum, server: Server, cluster: int | None = None) -> ClusterInfo:
    """What the weighted sum of a cluster's updates shows of it."""
    norm = float(total.mean()[: server.layout.trainable].norm())
    return ClusterInfo(members, total.mean_loss(), norm, total.max_norm, cluster)


def members_of(cluster_of: Mapping[str, int], clients: Sequence[str], clusters: int) -> list[list[str]]:
    """The clients of each cluster, in the order of `clients`; those without a cluster are in none."""
    members: list[list[str]] = [[] for _ in range(clusters)]
    for client in clients:
        if client in cluster_of:
            members[cluster_of[client]].append(client)
    return members


def mean_loss(sums: Sequence[WeightedSum]) -> float:
    """The mean training loss of all clients in several weighted sums; infinite where there is none."""
    weight = sum(total.weight for total in sums)
    return sum(total.loss for total in sums) / weight if weight else float("inf")
