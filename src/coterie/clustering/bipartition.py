"""Split clients in two so that the most similar pair torn apart is as dissimilar as possible (Algorithm 1, eq. 23)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.clustering.agglomerative import cut, dendrogram

FloatMatrix = npt.NDArray[np.floating]
Linkage = Literal["single", "complete"]


class Bipartition(NamedTuple):
    """Two sides of a split, as sorted positions in the similarity matrix; `first` always holds position 0."""

    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    alpha_cross_max: float
    """The largest similarity of two clients on different sides."""


def bipartition(similarity: FloatMatrix, linkage: Linkage = "single") -> Bipartition:
    """The split of M >= 2 clients in two that minimises the largest similarity across. similarity: (M, M), symmetric.

    `linkage="single"` is exact: O(M²) where Algorithm 1 takes O(M³). Among equally good splits that the spanning tree
    offers the most balanced one is taken, then the one found first, so the result is a function of the matrix alone.
    `linkage="complete"` is not optimal, but under heavy noise it finds true groups more often; its `alpha_cross_max`
    is that of the split it returns.
    """
    clients = len(similarity)
    if similarity.shape != (clients, clients) or clients < 2:
        raise ValueError(f"similarity has shape {similarity.shape}, expected (M, M) with M >= 2")
    if not np.isfinite(similarity.min()):
        raise ValueError("similarity holds values that are not finite")
    if linkage == "complete":
        labels = cut(dendrogram(1.0 - similarity, "complete"), 2)
        first, second = np.flatnonzero(labels == 0), np.flatnonzero(labels == 1)
        return Bipartition(first, second, float(similarity[np.ix_(first, second)].max()))
    if linkage != "single":
        raise ValueError(f"linkage is {linkage!r}, expected 'single' or 'complete'")
    order, weights = spanning_order(similarity)
    # weights[t - 1] is the largest similarity between order[:t] and the rest, and no split can do better than the
    # weakest edge of the maximum spanning tree: every split tears one of its edges.
    sizes = np.flatnonzero(weights == weights.min()) + 1
    size = sizes[np.argmin(np.abs(2 * sizes - clients))]
    return Bipartition(np.sort(order[:size]), np.sort(order[size:]), float(weights[size - 1]))


def spanning_order(similarity: FloatMatrix) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Grow the maximum spanning tree from client 0 (Prim's algorithm on a dense matrix). similarity: (M, M), symmetric.

    Returns the order (M,) in which clients join, and the weights (M - 1,) of the edges by which all but the first do:
    weights[t] is the largest similarity between order[:t + 1] and all clients that are not in it.
    """
    clients = len(similarity)
    order = np.zeros(clients, dtype=np.int64)
    weights = np.empty(clients - 1)
    outside = np.arange(1, clients)
    best = similarity[0, 1:].astype(np.float64)
    for step in range(clients - 1):
        at = int(best.argmax())
        joined = outside[at]
        order[step + 1], weights[step] = joined, best[at]
        # The last one outside fills the hole, which keeps both arrays dense and each pass as short as what is left.
        last = clients - 2 - step
        outside[at], best[at] = outside[last], best[last]
        outside, best = outside[:last], best[:last]
        np.maximum(best, similarity[joined][outside], out=best)
    return order, weights
