"""Principal angles between subspaces, and how far holders of several subspaces are from each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Measure = Literal["smallest", "sum"]
"""How far two subspaces are: their smallest principal angle, or the sum of all."""


def nearest_subspaces(
    first: Sequence[Floats], others: Sequence[Sequence[Floats]], measure: Measure
) -> npt.NDArray[np.float64]:
    """Degrees `(M,)` from one holder of subspaces to each of M others: between the nearest two of their subspaces."""
    mine, ranks = _padded(first)
    owners = np.repeat(np.arange(len(others)), [len(own) for own in others])
    theirs, other_ranks = _padded([basis for own in others for basis in own])
    common = np.minimum(ranks[:, None], other_ranks[None, :])
    size = max(mine.shape[1], theirs.shape[1])
    mine, theirs = (np.pad(b, ((0, 0), (0, size - b.shape[1]), (0, 0))) for b in (mine, theirs))
    angles = _angles(np.einsum("apd,bqd->abpq", mine, theirs, optimize=True))
    if measure == "smallest":
        between = angles[..., 0]
    else:
        # What was added to make all bases of one size has angles of 90 degrees, which stand last and do not count.
        between = np.where(np.arange(size) < common[..., None], angles, 0.0).sum(axis=-1)
    return np.array([between[:, owners == m].min() for m in range(len(others))])


def _angles(products: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(np.degrees(np.arccos(np.clip(np.linalg.svd(products, compute_uv=False), 0.0, 1.0))))


def _padded(bases: Sequence[Floats]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The bases as one array `(n, p, d)`, rows of zeros below the shorter ones, and their ranks `(n,)`."""
    ranks = np.array([len(basis) for basis in bases])
    table = np.zeros((len(bases), int(ranks.max()), bases[0].shape[1]))
    for row, basis in zip(table, bases, strict=True):
        row[: len(basis)] = basis
    return table, ranks
