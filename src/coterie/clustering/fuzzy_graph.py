"""UMAP's neighbourhood graph in array operations: who is near whom, and how strongly (McInnes et al. 2018).

UMAP's own functions for this are compiled in every process that calls them, which takes longer than the graph itself.
The weights are the same to the last bit, because a layout depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import extra

Floats = npt.NDArray[np.floating]

_BLOCK = 1024
"""Rows of the matrix of distances that are held at once."""
_SPARE = 8
"""Candidates beyond the neighbours wanted: the product that finds them rounds differently from their distances."""
_HALVINGS = 64
_TOLERANCE = 1e-5
_LEAST_SCALE = 1e-3
"""A point's scale is at least this share of its mean distance to its neighbours."""


@dataclass(frozen=True)
class Neighbours:
    """The nearest points of each point, nearest first."""

    indices: npt.NDArray[np.int64]
    """(n, k)"""
    distances: npt.NDArray[np.float32]
    """(n, k)"""


def nearest(points: npt.NDArray[np.float32], among: npt.NDArray[np.float32], k: int) -> Neighbours:
    """The `k` nearest of `among` `(m, e)` for each of `points` `(n, e)`, exactly; equal distances by position."""
    middle = among.mean(axis=0, dtype=np.float64)
    theirs = among - middle
    squares = np.einsum("ij,ij->i", theirs, theirs)
    wide = min(k + _SPARE, len(among))
    indices = np.empty((len(points), k), dtype=np.int64)
    distances = np.empty((len(points), k), dtype=np.float32)
    for start in range(0, len(points), _BLOCK):
        some = points[start : start + _BLOCK]
        far = squares - 2 * ((some - middle) @ theirs.T)
        near = np.argpartition(far, wide - 1, axis=1)[:, :wide] if wide < len(among) else _everybody(far)
        near.sort(axis=1)
        exact = np.sqrt(((some[:, None] - among[near]) ** 2).sum(axis=2, dtype=np.float64))
        order = np.argsort(exact, axis=1, kind="stable")[:, :k]
        indices[start : start + _BLOCK] = np.take_along_axis(near, order, 1)
        distances[start : start + _BLOCK] = np.take_along_axis(exact, order, 1)
    return Neighbours(indices, distances)


def fuzzy_graph(points: npt.NDArray[np.float32], k: int) -> Any:
    """The weighted graph of points `(n, e)` with `k` neighbours each (the point itself is the first): sparse `(n, n)`.

    The weight of an edge is the probability that at least one of its ends sees the other: w + wᵀ - w ∘ wᵀ.
    """
    import scipy.sparse

    found = nearest(points, points, k)
    values = memberships(found.distances, nearest_at=1)
    values[found.indices == np.arange(len(points))[:, None]] = 0
    rows = np.repeat(np.arange(len(points), dtype=np.int32), k)
    columns = found.indices.astype(np.int32).ravel()
    seen = scipy.sparse.coo_matrix((values.ravel(), (rows, columns)), shape=(len(points), len(points)))
    seen.eliminate_zeros()
    back = seen.transpose()
    graph = 1.0 * (seen + back - seen.multiply(back))
    graph.eliminate_zeros()
    return graph


def memberships(distances: npt.NDArray[np.float32], nearest_at: int) -> npt.NDArray[np.float32]:
    """How strongly each point is tied to each of its neighbours: exp(-(d - ρ) / σ), 1 up to ρ: `(n, k)`.

    ρ is the distance to the nearest other point (0 with `nearest_at` 0, for points outside the graph). σ is chosen so
    that the weights of all but the first neighbour add up to log2 k.
    """
    n, k = distances.shape
    rho = np.zeros(n, dtype=np.float32)
    if nearest_at:
        apart = distances > 0
        first = distances[np.arange(n), apart.argmax(axis=1)]
        rho = np.where(apart.any(axis=1), first, np.float32(0))
    beyond = distances - rho[:, None]
    sigma = _scales(beyond[:, 1:].astype(np.float64), float(np.log2(k)))
    least = np.where(rho > 0, distances.mean(axis=1), distances.mean())
    sigma = np.maximum(sigma.astype(np.float32), (_LEAST_SCALE * least).astype(np.float32))
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = _exp()(-np.maximum(beyond / sigma[:, None], 0))
    return np.where((beyond <= 0) | (sigma[:, None] == 0), np.float32(1), weights)


@cache
def _exp() -> Any:
    """The exponential of float32 that UMAP's own graph has: another last bit would give another layout."""
    with extra("flt", "FLT"):
        import numba
    vectorize: Any = numba.vectorize
    return vectorize(["f4(f4)"])(lambda value: np.exp(value))


def _scales(beyond: npt.NDArray[np.float64], target: float) -> npt.NDArray[np.float64]:
    """For each row the σ with Σ exp(-max(beyond, 0) / σ) = target, by halving from 1."""
    low, high, sigma = np.zeros(len(beyond)), np.full(len(beyond), np.inf), np.ones(len(beyond))
    open_rows = np.arange(len(beyond))
    positive = np.maximum(beyond, 0)
    for _ in range(_HALVINGS):
        now = sigma[open_rows]
        total = np.exp(-positive[open_rows] / now[:, None]).sum(axis=1)
        unsettled = np.abs(total - target) >= _TOLERANCE
        open_rows, now, above = open_rows[unsettled], now[unsettled], (total > target)[unsettled]
        if not len(open_rows):
            break
        high[open_rows] = np.where(above, now, high[open_rows])
        low[open_rows] = np.where(above, low[open_rows], now)
        ends = high[open_rows]
        sigma[open_rows] = np.where(np.isinf(ends), 2 * now, (low[open_rows] + ends) / 2)
    return sigma


def _everybody(far: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.broadcast_to(np.arange(far.shape[1]), far.shape).copy()
