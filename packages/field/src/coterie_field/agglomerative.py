"""Agglomerative clustering of clients by their distances, cut at a distance or at a number of clusters."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie.clustering import cut

Linkage = Literal["single", "complete", "average", "ward"]
"""How far two clusters are: their nearest, farthest or mean pair, or the growth of the sum of squares (Ward)."""
Metric = Literal["l1", "l2", "cosine"]
_NAMES: dict[Metric, Literal["cityblock", "euclidean", "cosine"]] = {
    "l1": "cityblock",
    "l2": "euclidean",
    "cosine": "cosine",
}


def vector_distances(vectors: npt.NDArray[np.floating], metric: Metric) -> npt.NDArray[np.float64]:
    """Distances `(M, M)` between the rows of `vectors: (M, d)`; a row of zeros is at cosine distance 1 from others."""
    from scipy.spatial.distance import pdist, squareform

    found = np.nan_to_num(pdist(np.asarray(vectors, dtype=np.float64), _NAMES[metric]), nan=1.0)
    return np.asarray(squareform(found))


def agglomerate(
    distances: npt.NDArray[np.floating],
    linkage: Linkage,
    *,
    clusters: int | None = None,
    threshold: float | None = None,
) -> npt.NDArray[np.int64]:
    """Labels `(M,)` of the clusters, numbered by their first member.

    Args:
        distances: `(M, M)`, symmetric; for Ward's linkage Euclidean ones.
        linkage: how far two clusters are.
        clusters: how many clusters to leave, at most M.
        threshold: clusters at this distance or nearer are merged; with it `clusters` is not needed.
    """
    from scipy.cluster.hierarchy import linkage as tree_of
    from scipy.spatial.distance import squareform

    if (clusters is None) == (threshold is None):
        raise ValueError("give one of clusters and threshold")
    members = len(distances)
    if members < 2:
        return np.zeros(members, dtype=np.int64)
    symmetric = (np.asarray(distances, dtype=np.float64) + np.asarray(distances, dtype=np.float64).T) / 2
    merges = np.asarray(tree_of(squareform(symmetric, checks=False), linkage))
    if clusters is None:
        assert threshold is not None
        clusters = members - int(np.count_nonzero(merges[:, 2] <= threshold))
    return cut(merges, min(clusters, members))
