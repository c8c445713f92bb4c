"""Clusters of clients from the distances between them: the clearest level of a dendrogram, then client by client.

Average linkage joins a stray client late and parts a wide cluster early, so no height is right everywhere. The cut with
the best silhouette within a range of heights is taken, each client then moves to the cluster it is nearest to, and a
client whose own inputs lie far from all others' stands alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.clustering.dendrogram import cut
from coterie.clustering.fuzzy_graph import nearest

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

LOWEST, HIGHEST, STEP = 0.35, 0.6, 0.01
"""Heights that are tried. Of LOWEST 0.25 to 0.45 and HIGHEST 0.5 to 0.65 these gave the most right clusters on 111
federations below number 2066 of `flt-decisions`: 65 of 68, their neighbours 62 to 64, the fixed height of 0.5 before
them 58."""
FAR = 2.5
"""How many times as far as usual in its cluster a client's centroids lie from others' for it to stand alone: 2, 2.5 and
3 gave the same on those federations."""
MOVES = 10
"""Times that all clients may move, at the most."""
FEWEST = 4
"""Members from which on a cluster says how far is usual."""


def clearest_cut(distances: Floats, merges: Floats) -> Labels:
    """The clusters `(M,)`, at least two, that stand apart best after clients have settled.

    distances: `(M, M)`; merges: their dendrogram `(M - 1, 4)` in scipy's form, M >= 2.
    """
    heights = np.arange(HIGHEST, LOWEST - STEP / 2, -STEP)
    counts = dict.fromkeys(max(2, 1 + int(np.count_nonzero(merges[:, 2] > height))) for height in heights)
    settled = [settle(distances, cut(merges, count)) for count in counts]
    return max(settled, key=lambda labels: mean_silhouette(distances, labels))


def settle(distances: Floats, labels: Labels) -> Labels:
    """The clusters `(M,)` after each client moved to that of the least mean distance `(M, M)`, until nobody moves.

    A client alone joins a cluster only where it is no farther from the members than some member is from the others.
    """
    rows = np.arange(len(labels))
    for _ in range(MOVES):
        sums, sizes = distances @ np.eye(labels.max() + 1)[labels], np.bincount(labels)
        others = sizes[labels] - 1
        means = sums / sizes
        own = np.divide(sums[rows, labels], others, out=np.zeros(len(labels)), where=others > 0)
        widest = np.zeros(len(sizes))
        np.maximum.at(widest, labels, own)
        means[rows, labels] = np.where(others > 0, own, np.inf)
        best = means.argmin(axis=1)
        stays = (others == 0) & (means[rows, best] > widest[best])
        moved = numbered(np.where(stays, labels, best))
        if np.array_equal(moved, labels):
            break
        labels = moved
    return labels


def stand_alone(labels: Labels, centroids: npt.NDArray[np.floating]) -> Labels:
    """The clusters `(M,)` without the members whose centroids `(M, k, e)` lie FAR from all others' in their cluster.

    Each is a cluster by itself. UMAP and words cannot tell: in the plane every point is near to fifteen others, and a
    word takes several clients.
    """
    alone = np.zeros(len(labels), dtype=bool)
    for cluster in range(labels.max() + 1):
        members = np.flatnonzero(labels == cluster)
        if len(members) >= FEWEST:
            apart = nearest_others(centroids[members])
            alone[members] = apart > FAR * np.median(apart)
    return numbered(np.where(alone, labels.max() + 1 + np.arange(len(labels)), labels))


def nearest_others(centroids: npt.NDArray[np.floating]) -> Floats:
    """How far each client's centroids are from the nearest of another client, on average: `(M, k, e)` gives `(M,)`."""
    real = ~np.isnan(centroids).any(axis=2)
    points, owner = np.asarray(centroids[real], dtype=np.float32), np.nonzero(real)[0]
    found = nearest(points, points, min(centroids.shape[1] + 1, len(points)))
    foreign = np.where(owner[found.indices] == owner[:, None], np.inf, found.distances).min(axis=1)
    return np.asarray(np.bincount(owner, foreign) / np.bincount(owner))


def mean_silhouette(distances: Floats, labels: Labels) -> float:
    """The mean silhouette of clusters; a client alone counts 0, as does a single cluster. distances: `(M, M)`."""
    sizes = np.bincount(labels)
    if len(sizes) < 2:
        return 0.0
    members = np.eye(len(sizes))[labels]
    sums, rows = distances @ members, np.arange(len(labels))
    own = sums[rows, labels] / np.maximum(sizes[labels] - 1, 1)
    means = sums / sizes
    means[rows, labels] = np.inf
    other = means.min(axis=1)
    larger = np.maximum(own, other)
    scores = np.divide(other - own, larger, out=np.zeros(len(labels)), where=larger > 0)
    return float(np.where(sizes[labels] > 1, scores, 0.0).mean())


def numbered(labels: npt.ArrayLike) -> Labels:
    """The same clusters, numbered from 0 by their first member."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)].astype(np.int64)
