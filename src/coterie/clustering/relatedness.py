"""From clients' centroids to who is related to whom, who averages with whom, and disjoint clusters (FLT)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from coterie.clustering.bipartition import spanning_order
from coterie.clustering.dendrogram import cut

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

RANGE = 2.0
"""Times the usual radius from which on a client's centroids are far outside. On seven scenarios of digits, seeds 1 to
3, honest clients stayed below 1.31, and centroids turned around were at 1.77 or more (2.35 but for rotated digits)."""
# Numbers held at once while distances of centroids are made: 64 MB. It bounds memory and does not touch the results.
_AT_ONCE = 8_000_000
# Families stand apart if the step between them is this many times the longest step inside.
_CLEAR_RATIO = 2.0
# ReplyBlock of the variance that a cut in two must explain to count as two heaps: one normal heap gives 0.64.
_TWO_HEAPS = 0.72
# With fewer distances than this (15 clients) two heaps appear by chance too often.
_HEAPS_NEED = 100
# A level of the dendrogram is clear if the jump above it is at least this share of the last merge's height.
_CLEAR_JUMP = 0.25


def out_of_range(points: npt.NDArray[np.floating], multiple: float = RANGE) -> Flags:
    """Which clients have a centroid far outside the range of most: (M,).

    points: (M, k, e), rows of nan for centroids that are missing. A client's radius is the distance of its farthest
    centroid from the median of all, in every coordinate; far is more than `multiple` times the radius that a quarter
    of the clients exceed.
    """
    flat = points.reshape(-1, points.shape[-1])
    centre = np.nanmedian(flat, axis=0) if len(flat) else np.zeros(points.shape[-1])
    apart = np.linalg.norm(points - centre, axis=2)
    radii = np.nan_to_num(apart, nan=0.0).max(axis=1, initial=0.0)
    return np.asarray(radii > multiple * _upper_quartile(radii.tolist()))


def _upper_quartile(values: Sequence[float]) -> float:
    """The value that a quarter of all exceed, but at least one does; of one or two the lower, zero of none."""
    return sorted(values)[max(0, len(values) - 1 - max(1, len(values) // 4))] if values else 0.0


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
        # A missing centroid takes a real one out of the match only if it must: dear with a real one, free with another.
        real_rows, real_columns = ~missing.all(axis=2, keepdims=True), ~missing.all(axis=1, keepdims=True)
        dear = 1.0 + costs.shape[1] * float(np.nanmax(costs))
        filled = np.where(missing, np.where(real_rows | real_columns, dear, 0.0), costs)
    columns = np.array([linear_sum_assignment(problem)[1] for problem in filled])
    return np.asarray(np.nanmean(np.take_along_axis(costs, columns[:, :, None], axis=2), axis=(1, 2)))


def real_centroids(points: npt.NDArray[np.floating]) -> Flags:
    """Which centroids (M, k) are there; every client must have one."""
    if points.ndim != 3:
        raise ValueError(f"points have shape {points.shape}, expected (clients, k, e)")
    real = ~np.isnan(points).any(axis=2)
    if not real.any(axis=1).all():
        raise ValueError(f"client {int(np.argmin(real.any(axis=1)))} has no centroid without nan")
    return np.asarray(real)


def _distance_blocks(points: npt.NDArray[np.floating]) -> Iterator[tuple[int, Floats]]:
    """Yield a first client and distances (b, k, M - first, k) of b clients' centroids to those of all from it on."""
    from scipy.spatial.distance import cdist

    real_centroids(points)
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


def auto_gamma(distances: Floats) -> float:
    """A threshold γ between "near" and "far", read from the distances (M, M) alone; scaling them scales it.

    Families that stand apart: sort the edges of the minimum spanning tree, so that steps inside families come first
    and steps between families last. If somewhere in the longer half (which leaves families of two or more on average)
    one edge is at least twice the one before it, γ is the geometric mean of the two where that ratio is largest.
    Families that overlap in a chain show no such step, so next the logarithms of all distances are cut in two with the
    least variance inside the parts. If that explains 72 % of the variance, which a single heap does not (64 % for a
    normal one), γ is the cut; this second question is asked from 15 clients on. Otherwise the clients are one family
    and γ exceeds every distance.
    """
    clients = len(distances)
    if clients < 2:
        return 1.0
    edges = np.sort(-spanning_order(-distances)[1])
    pairs = np.sort(distances[np.triu_indices(clients, 1)])
    beyond_all = float(np.nextafter(pairs[-1], np.inf))
    if pairs[-1] <= 0:
        return beyond_all
    # Identical clients have distance zero; a floor far below the longest distance keeps the logarithms finite.
    floor = pairs[-1] * 1e-6
    steps = _largest_step(np.log(np.maximum(edges[(clients - 1) // 2 :], floor)))
    heaps = _two_heaps(np.log(np.maximum(pairs, floor)))
    chosen = heaps if steps is None else steps
    return beyond_all if chosen is None else float(np.exp(chosen))


def _largest_step(rising: Floats) -> float | None:
    """The middle of the largest step in sorted logarithms (n,), or None if that step is less than a doubling."""
    steps = np.diff(rising)
    if len(steps) == 0 or steps.max() < np.log(_CLEAR_RATIO):
        return None
    at = int(np.argmax(steps))
    return float(rising[at] + rising[at + 1]) / 2


def _two_heaps(rising: Floats) -> float | None:
    """The cut of sorted values (n,) in two with the least variance inside, or None if it does not explain enough."""
    spread = float(rising.var())
    total = len(rising)
    if total < _HEAPS_NEED or spread <= 0:
        return None
    below = np.arange(1, total)
    sums = np.cumsum(rising - rising.mean())[:-1]
    # With values centred, the variance between the parts is sums² / (below · above).
    explained = sums**2 / (below * (total - below)) / spread
    at = int(np.argmax(explained))
    return float(rising[at] + rising[at + 1]) / 2 if explained[at] >= _TWO_HEAPS else None


def related(distances: Floats, gamma: float) -> Flags:
    """Who is related to whom (M, M): distance below `gamma`, and everybody to themselves.

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


def ward_clusters(relatedness: Flags | Floats, clusters: int | None = None, unit: bool = True) -> npt.NDArray[np.int64]:
    """Disjoint clusters by Ward's method on the clients' rows (case II); labels (M,) numbered by their first member.

    relatedness: (M, M), who is related to whom or how far they are. Clients are alike if they stand alike to everybody.
    With `clusters=None` the number is read from the dendrogram, between 2 and M // 2: the level below the largest jump
    in merge heights, or one cluster if that jump is less than a quarter of the last height. If nobody is related to
    anybody else, every client is alone. `unit` as in `ward_merges`.
    """
    profiles = np.asarray(relatedness, dtype=np.float64)
    members = len(profiles)
    if members == 1:
        return np.zeros(1, dtype=np.int64)
    if clusters is None and relatedness.dtype == np.bool_ and np.count_nonzero(relatedness) == np.trace(profiles):
        return np.arange(members, dtype=np.int64)
    merges = ward_merges(relatedness, unit)
    return cut(merges, clear_level(merges[:, 2])[0] if clusters is None else clusters)


def ward_merges(relatedness: Flags | Floats, unit: bool = True) -> Floats:
    """The dendrogram of Ward's method on the clients' rows: (M - 1, 4) in scipy's form. relatedness: (M, M), M >= 2.

    Rows of flags are scaled to length one, or else small families would look alike because they have few relatives
    each; `unit=False` takes the zeros and ones as they are. The paper says neither.
    """
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    # Flags give whole numbers, which float32 holds exactly and multiplies twice as fast.
    profiles: npt.NDArray[np.floating] = relatedness.astype(np.float32 if relatedness.dtype == np.bool_ else np.float64)
    gram = (profiles @ profiles.T).astype(np.float64)
    if unit and relatedness.dtype == np.bool_:
        degrees = np.diag(gram)
        gram = gram / np.sqrt(np.outer(degrees, degrees))
    squares = np.diag(gram)
    squared_distances = _mirrored(np.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0.0))
    return np.asarray(linkage(squareform(np.sqrt(squared_distances), checks=False), "ward"))


def clear_level(heights: Floats) -> tuple[int, float]:
    """The number of clusters below the largest jump in rising merge heights (M - 1,), or 1 if no jump is clear.

    Also the jump as a share of the last height: how clear that level is.
    """
    members = len(heights) + 1
    # jumps[t] separates heights[t] from heights[t + 1]: t + 1 merges done, members - t - 1 clusters left.
    jumps = np.diff(heights)
    most = members // 2
    if most < 2 or heights[-1] <= 0:
        return 1, 0.0
    allowed = jumps[members - most - 1 :]
    at = int(np.argmax(allowed))
    share = float(allowed[at] / heights[-1])
    return (most - at if share >= _CLEAR_JUMP else 1), share
