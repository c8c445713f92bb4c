"""Who is related to whom, from the centroids that clients sent: FLT's Algorithm 2, lines 12-19, and its newcomers."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie.clustering import matching_distances, min_pair_distances, related, ward_clusters
from coterie.clustering.manifold import place, project
from coterie.errors import ConfigError
from coterie.methods.base import Info, Matrix
from coterie.methods.embedding import Embedded
from coterie.methods.server import Server
from coterie.snapshot import saved

Distance = Literal["min", "matching"]
DISTANCES = {"min": min_pair_distances, "matching": matching_distances}
UMAP_SEED = 0
"""UMAP's own seed, apart from the run's: equal centroids always have equal positions."""
MOST_IN_REPORT = 1000
"""Clients whose distances are kept for the report."""


@saved
class Relatives:
    """What the one-off stage found out about the clients `ids`."""

    ids: tuple[str, ...]
    centroids: npt.NDArray[np.float32]
    """`(M, k, e)`, nan where a client sent fewer than k."""
    positions: npt.NDArray[np.float32]
    """`(M, k, u)`: where UMAP put the centroids; the centroids themselves where no γ needs UMAP's scale."""
    gamma: float | None
    """Newcomers nearer than this are related; None where there are clusters, of which they join the nearest."""
    related: npt.NDArray[np.bool_]
    """`(M, M)`: whose models each client averages; in case II the members of its cluster."""
    text: str
    """The stage's result in words, for the first round's event."""
    projected: bool = False
    """Whether UMAP laid the centroids out."""

    def distances(self, distance: Distance) -> npt.NDArray[np.float64]:
        """A `(M, M)`, how far the clients are from each other (lines 15-16)."""
        return DISTANCES[distance](self.positions)


def check_clusters(clusters: int | None, server: Server) -> None:
    """Refuse more clusters than there are clients."""
    if clusters is not None and clusters > len(server.clients):
        raise ConfigError(f"clusters={clusters} with {len(server.clients)} clients: ask for at most one per client")


def undivided(found: Embedded) -> Relatives:
    """One cluster, whose members are compared by their centroids as they are."""
    count = len(found.ids)
    text = f"{count} clients begin as one cluster; their centroids say where it may be split, held-out data whether"
    return Relatives(found.ids, found.centroids, found.centroids, None, np.ones((count, count), dtype=bool), text)


def cut_into(found: Embedded, clusters: int, distance: Distance) -> Relatives:
    """A number of clusters by Ward's method on the rows of the clients' distances."""
    whole = undivided(found)
    return _clustered(whole, ward_clusters(whole.distances(distance), clusters), "as asked")


def projected(found: Embedded) -> Relatives:
    """The clients with their centroids where UMAP puts them, none related yet (lines 12-14)."""
    positions = project(found.centroids, UMAP_SEED)
    alone = np.eye(len(found.ids), dtype=bool)
    return Relatives(found.ids, found.centroids, positions, None, alone, "", projected=True)


def graph_at(laid_out: Relatives, gamma: float, distance: Distance) -> Relatives:
    """Case I: clients nearer than γ are related (line 17; the paper prints Sign(A − γ), which marks the far pairs)."""
    near = related(laid_out.distances(distance), gamma)
    text = f"γ = {gamma:.3g}: {100 * _share(near):.0f} % of the pairs are related"
    return dataclasses.replace(laid_out, gamma=gamma, related=near, text=text)


def clusters_at(laid_out: Relatives, gamma: float, distance: Distance, clusters: int | None) -> Relatives:
    """Case II: Ward's method on the rows of the relatedness; None cuts at the largest jump (lines 18-19)."""
    graph = graph_at(laid_out, gamma, distance)
    share = _share(graph.related)
    if clusters is not None and share in (0, 1) and len(graph.ids) > 1:
        apart = laid_out.distances(distance)[np.triu_indices(len(graph.ids), 1)]
        raise ConfigError(
            f"gamma={gamma:g} relates {'no pair' if share == 0 else 'all pairs'} (distances are {apart.min():.3g} to "
            f"{apart.max():.3g}), which leaves no ground for {clusters} clusters: choose it within, or leave it out"
        )
    return _clustered(graph, ward_clusters(graph.related, clusters), graph.text)


def _share(near: npt.NDArray[np.bool_]) -> float:
    """The share of related pairs of different clients."""
    pairs = len(near) * (len(near) - 1)
    return (np.count_nonzero(near) - len(near)) / max(1, pairs)


def _clustered(relatives: Relatives, labels: npt.NDArray[np.int64], text: str) -> Relatives:
    """The members of a cluster are each other's relatives."""
    sizes = np.bincount(labels)
    found = "one cluster" if len(sizes) == 1 else f"{len(sizes)} clusters of sizes {', '.join(map(str, sizes))}"
    together = labels[:, None] == labels[None, :]
    return dataclasses.replace(relatives, gamma=None, related=together, text=f"{text}, {found}")


def positions_of(found: Embedded, known: Relatives) -> npt.NDArray[np.float32]:
    """Where newcomers' centroids lie among those known: by UMAP's transform, which moves no other client."""
    if not known.projected:
        return found.centroids
    return place(found.centroids, known.centroids, known.positions, UMAP_SEED)


def with_newcomers(
    known: Relatives, found: Embedded, positions: npt.NDArray[np.float32], distance: Distance
) -> tuple[Relatives, list[int]]:
    """The relatives with newcomers at `positions`, and for each the known client whose model it begins with.

    In a graph a newcomer is related to those nearer than γ, and begins with the nearest client's model. Among clusters
    it joins the one whose members are nearest on average: one centroid that lies astray makes a wrong client the
    nearest, but hardly a wrong cluster.
    """
    everywhere = np.concatenate([known.positions, positions])
    distances = DISTANCES[distance](everywhere)
    before = len(known.ids)
    to_known = distances[before:, :before]
    if known.gamma is None:
        nearest = (to_known @ known.related / known.related.sum(axis=0)).argmin(axis=1)
        home = np.concatenate([np.arange(before), nearest])
        near = known.related[np.ix_(home, home)]
    else:
        nearest = to_known.argmin(axis=1)
        near = related(distances, known.gamma)
        near[:before, :before] = known.related
    centroids = np.concatenate([known.centroids, found.centroids])
    grown = dataclasses.replace(known, ids=known.ids + found.ids, centroids=centroids, positions=everywhere)
    return dataclasses.replace(grown, related=near), nearest.tolist()


def with_distances(info: Info, relatives: Relatives, distance: Distance) -> Info:
    """The round's report with the distances between clients or, for many of them, with who is related."""
    if len(relatives.ids) > MOST_IN_REPORT:
        values, meaning, similar = relatives.related.astype(np.float32), "related (1) or not (0)", True
    else:
        values = np.asarray(relatives.distances(distance), dtype=np.float32)
        meaning, similar = "distance between the clients' data as embedded", False
    return dataclasses.replace(info, matrices=[Matrix("relatedness", relatives.ids, values, meaning, similar)])
