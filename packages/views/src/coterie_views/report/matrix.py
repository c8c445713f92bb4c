"""Who is like whom: the matrix that a method clustered by, in the order of its clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.runs.matrices import Matrix

LARGEST = 600
"""Most rows of a matrix that are drawn; more clients are averaged in blocks."""
LEFT = -1
"""Stands for the cluster of clients that have left."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DrawnMatrix:
    """Values between clients `(n, n)`, neighbours from one cluster; `sizes` are the clusters' in that order."""

    values: Floats
    clusters: list[int]
    sizes: list[int]
    meaning: str
    similar: bool
    clients: int


def arranged(matrix: Matrix, cluster_of: Mapping[str, int]) -> DrawnMatrix:
    """The matrix with clients in the order of their clusters' ids, reduced to what can be drawn."""
    labels = np.asarray([cluster_of.get(client, LEFT) for client in matrix.clients])
    order = np.argsort(labels, kind="stable")
    ids, sizes = np.unique(labels, return_counts=True)
    values = reduced(matrix.values[np.ix_(order, order)], LARGEST)
    return DrawnMatrix(values, ids.tolist(), sizes.tolist(), matrix.meaning, matrix.similar, len(matrix.clients))


def reduced(values: Floats, largest: int) -> Floats:
    """The matrix `(n, n)` as means over equal blocks `(m, m)` with m ≤ largest; a small one stays as it is."""
    n = len(values)
    if n <= largest:
        return values
    bounds = np.linspace(0, n, largest + 1).astype(int)[:-1]
    counts = np.diff([*bounds, n])
    sums = np.add.reduceat(np.add.reduceat(values, bounds, axis=0), bounds, axis=1)
    return np.asarray(sums / np.outer(counts, counts))
