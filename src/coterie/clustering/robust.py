"""Means of updates that a few hostile or broken clients cannot move far.

Every rule takes updates `(n, d)` and gives one vector `(d,)` in float64. Rules that look at one coordinate at a time
walk over the columns in blocks; multi-Krum and the geometric median work on the inner products of the updates `(n, n)`,
so that no second copy of the updates is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.clustering.blocks import Updates, column_blocks

STEPS = 100
"""Most iterations of the geometric median."""
TOLERANCE = 1e-9


def coordinate_median(updates: Updates) -> Tensor:
    """The median of every coordinate (for an even number the mean of the two in the middle)."""
    return trimmed_mean(updates, (updates.shape[0] - 1) // 2)


def trimmed_mean(updates: Updates, cut: int) -> Tensor:
    """The mean of every coordinate without its `cut` smallest and `cut` largest values; at least one or two remain."""
    count = updates.shape[0]
    cut = max(0, min(cut, (count - 1) // 2))
    parts = [block.double().sort(dim=0).values[cut : count - cut].mean(dim=0) for block in column_blocks(updates)]
    return _joined(parts)


def multi_krum(updates: Updates, hostile: int, weights: Sequence[float] | None = None) -> Tensor:
    """The weighted mean of all updates but the `hostile` that lie farthest from others (Blanchard et al. 2017)."""
    return weighted_mean(updates, np.where(krum_kept(updates, hostile), _given(updates, weights), 0.0))


def krum_kept(updates: Updates, hostile: int) -> npt.NDArray[np.bool_]:
    """Which updates multi-Krum keeps `(n,)`: those with the least sum of squared distances to their n − hostile − 2
    nearest.

    Krum needs n ≥ 2·hostile + 3; with fewer updates it assumes as many hostile ones as it can stand.
    """
    count = updates.shape[0]
    hostile = max(0, min(hostile, (count - 3) // 2))
    if not hostile:
        return np.ones(count, dtype=bool)
    near = np.sort(squared_distances(updates), axis=1)[:, 1 : count - hostile - 1]
    kept = np.zeros(count, dtype=bool)
    kept[np.argsort(near.sum(axis=1), kind="stable")[: count - hostile]] = True
    return kept


def geometric_median(updates: Updates, weights: Sequence[float] | None = None) -> Tensor:
    """The point with the least weighted sum of distances to the updates, by Weiszfeld's iteration.

    The point is a convex combination of the updates, so the iteration runs on its n coefficients. Distances below a
    millionth of the typical one count as that, where the iteration would divide by zero.
    """
    given = _given(updates, weights)
    squares = squared_distances(updates)
    typical = float(np.sqrt(np.median(squares)))
    share = given / given.sum()
    for _ in range(STEPS):
        # ‖x_i − Σ a_j x_j‖² from the distances between the updates, because Σ a_j = 1.
        apart = np.sqrt(np.maximum(squares @ share - 0.5 * share @ squares @ share, (1e-6 * typical) ** 2))
        if not apart.all():
            break  # they are all equal
        after = given / apart
        after /= after.sum()
        done = np.abs(after - share).max() < TOLERANCE
        share = after
        if done:
            break
    return weighted_mean(updates, share)


def weighted_mean(updates: Updates, weights: npt.ArrayLike) -> Tensor:
    """Σ w_i x_i / Σ w_i."""
    share = torch.from_numpy(np.asarray(weights, dtype=np.float64))
    share = share / share.sum()
    return _joined([share @ block.double() for block in column_blocks(updates)])


def squared_distances(updates: Updates) -> npt.NDArray[np.float64]:
    """‖x_i − x_j‖² for every pair `(n, n)`, exact to about 1e-12 of the largest."""
    gram = torch.zeros(updates.shape[0], updates.shape[0], dtype=torch.float64)
    for block in column_blocks(updates):
        # Distances do not change when the same vector is taken off all, and small numbers cancel less.
        wide = block.double() - block[:1].double()
        gram += wide @ wide.T
    squares = gram.diagonal()
    return np.asarray((squares[:, None] + squares[None, :] - 2 * gram).clamp_min(0).fill_diagonal_(0).numpy())


def _given(updates: Updates, weights: Sequence[float] | None) -> npt.NDArray[np.float64]:
    return np.ones(updates.shape[0]) if weights is None else np.asarray(weights, dtype=np.float64)


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
