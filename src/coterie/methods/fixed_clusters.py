"""FedAvg in clusters that were formed once and stay: what the methods that cluster in one shot do in their rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from torch import Tensor

from coterie.methods.averaging import average_clusters, members_of
from coterie.methods.base import Assignment, Event, Info
from coterie.methods.server import Server
from coterie.snapshot import saved


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
    members = members_of(dict.fromkeys(server.clients, largest) | cluster_of, server.clients, len(clusters.models))
    taken = [j for j, own in enumerate(members) if own]
    return Assignment([clusters.models[j] for j in taken], [members[j] for j in taken], ids=taken)
