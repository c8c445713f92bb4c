"""From clients' centroids to who is related to whom, who averages with whom, and disjoint clusters (FLT)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from coterie.clustering.agglomerative import cut, dendrogram

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# Numbers held at once while distances of centroids are made: 64 MB. It bounds memory and does not touch the results.
_AT_ONCE = 8_000_000
# A level of the dendrogram is clear if the jump above it is at least this share of the last merge's height.
_CLEAR_JUMP = 0.25


def min_pair_distances(points: npt.NDArray[np.floating]) -> Floats:
    """A_ij, the smallest distance between a centroid of client i and one of client j.

    points: (M, k, e); returns (M, M) with a zero diagonal. A client with fewer than k centroids fills up with nan.
    """
    distances = np.zeros((len(points), len(points)))
    for start, block in _distance_blocks(points):
        near = np.nan_to_num(block, copy=False, nan=np.inf).min(axis=3).min(axis=1)
        distances[start : start + len(near), start:] = near
    return _mirrored(distances)


def matching_distances(points: npt.NDArray[np.floating]) -> Floats:
    """The mean distance of clients' centroids under their best one-to-one match. points: (M, k, e); returns (M, M).

    Stricter than `min_pair_distances`: sharing one centroid is not enough. A client with fewer than k centroids fills
    its rows up with nan, and then each of its centroids is matched with one of the other's; the diagonal is zero.
    """
    distances = np.zeros((len(points), len(points)))
    for start, block in _distance_blocks(points):
        for row, costs in enumerate(block.transpose(0, 2, 1, 3)):
            distances[start + row, start:] = _matched_means(costs)
    return _mirrored(distances)


def _matched_means(costs: Floats) -> Floats:
    """The mean cost of the best match in each of n problems. costs: (n, k, k), nan where a side is missing; (n,)."""
    from scipy.optimize import linear_sum_assignment

    missing = np.isnan(costs)
    filled = costs
    if missing.any():
        # As few pairs as possible with a missing side: a missing centroid takes a real one out only if it must.
        dear = 1.0 + costs.shape[1] * float(np.nanmax(costs))
        filled = np.where(missing, dear, costs)
    columns = np.array([linear_sum_assignment(problem)[1] for problem in filled])
    return np.asarray(np.nanmean(np.take_along_axis(costs, columns[:, :, None], axis=2), axis=(1, 2)))


def _check_centroids(points: npt.NDArray[np.floating]) -> None:
    """Refuse clients without any centroid. points: (M, k, e)."""
    if points.ndim != 3:
        raise ValueError(f"points have shape {points.shape}, expected (clients, k, e)")
    has_one = (~np.isnan(points).any(axis=2)).any(axis=1)
    if not has_one.all():
        raise ValueError(f"client {int(np.argmin(has_one))} has no centroid without nan")


def _distance_blocks(points: npt.NDArray[np.floating]) -> Iterator[tuple[int, Floats]]:
    """Yield a first client and distances (b, k, M - first, k) of b clients' centroids to those of all from it on."""
    from scipy.spatial.distance import cdist

    _check_centroids(points)
    clients, k, e = points.shape
    flat = np.ascontiguousarray(points, dtype=np.float64).reshape(clients * k, e)
    start = 0
    while start < clients:
        rows = min(clients - start, max(1, _AT_ONCE // (k * k * (clients - start))))
        block = cdist(flat[start * k : (start + rows) * k], flat[start * k :])
        yield start, block.reshape(rows, k, clients - start, k)
        start += rows


def _mirrored(upper: Floats) -> Floats:
    """The symmetric matrix with a zero diagonal whose part above the diagonal is that of `upper` (M, M)."""
    above = np.triu(upper, 1)
    return np.asarray(above + above.T)


def related(distances: Floats, gamma: float) -> Flags:
    """Who is related to whom (M, M): distance below `gamma`, and each client to itself.

    The paper prints Sign(A − γ), which marks the far pairs.
    """
    near = np.asarray(distances < gamma)
    np.fill_diagonal(near, True)
    return near


def mixing_matrix(related: Flags, samples: npt.ArrayLike, participants: npt.ArrayLike) -> Floats:
    """The weights with which each client averages models after a round (case I); every row sums to one.

    related: (M, M); samples: (M,); participants: positions of the clients that took part. Returns (M, M): row i weighs
    the participants related to i by their samples. A client none of whose relatives took part keeps its model: its
    row is that of the identity.
    """
    clients = len(related)
    took_part = np.zeros(clients, dtype=bool)
    took_part[np.asarray(participants, dtype=np.int64)] = True
    weights = np.where(related & took_part, np.asarray(samples, dtype=np.float64), 0.0)
    totals = weights.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(weights, totals, out=np.eye(clients), where=totals > 0))


def ward_clusters(relatedness: Flags | Floats, clusters: int | None = None) -> npt.NDArray[np.int64]:
    """Disjoint clusters by Ward's method on the clients' rows (case II); labels (M,) numbered by their first member.

    relatedness: (M, M), who is related to whom or how far they are. Clients are alike if their rows are.
    With `clusters=None` the number is read from the dendrogram, between 2 and M // 2: the level below the largest jump
    in merge heights, or one cluster if that jump is less than a quarter of the last height. If no client is related to
    another, every client is alone.
    """
    members = len(relatedness)
    if members == 1:
        return np.zeros(1, dtype=np.int64)
    if clusters is None and relatedness.dtype == np.bool_ and np.count_nonzero(relatedness) == np.trace(relatedness):
        return np.arange(members, dtype=np.int64)
    merges = ward_merges(relatedness)
    return cut(merges, clear_level(merges[:, 2]) if clusters is None else clusters)


def ward_merges(relatedness: Flags | Floats) -> Floats:
    """The dendrogram of Ward's method on clients' rows: (m - 1, 4) in scipy's form. relatedness: (m, M), m >= 2."""
    # Flags give whole numbers, which float32 holds exactly and multiplies twice as fast.
    profiles: npt.NDArray[np.floating] = relatedness.astype(np.float32 if relatedness.dtype == np.bool_ else np.float64)
    gram = (profiles @ profiles.T).astype(np.float64)
    squares = np.diag(gram)
    squared_distances = _mirrored(np.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0.0))
    return dendrogram(np.sqrt(squared_distances), "ward")


def clear_level(heights: Floats) -> int:
    """The number of clusters below the largest jump in rising merge heights (M - 1,), or 1 if no jump is clear."""
    members = len(heights) + 1
    # jumps[t] separates heights[t] from heights[t + 1]: t + 1 merges done, members - t - 1 clusters left.
    jumps = np.diff(heights)
    most = members // 2
    if most < 2 or heights[-1] <= 0:
        return 1
    allowed = jumps[members - most - 1 :]
    at = int(np.argmax(allowed))
    return most - at if allowed[at] / heights[-1] >= _CLEAR_JUMP else 1
