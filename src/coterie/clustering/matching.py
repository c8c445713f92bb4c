"""Compare what was found with the truth: two partitions, or two sets of models whose order means nothing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def adjusted_rand_index(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Agreement of two partitions of the same clients: 1 if they are equal, near 0 by chance. Both: (M,) labels."""
    a, b = np.asarray(first), np.asarray(second)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"labels have shapes {a.shape} and {b.shape}, expected two of one length")
    a, b = np.unique(a, return_inverse=True)[1], np.unique(b, return_inverse=True)[1]
    if len(a) == 0:
        return 1.0
    width = int(b.max()) + 1
    cells = np.unique(a * width + b, return_counts=True)[1]
    both, in_a, in_b = _pairs(cells), _pairs(np.bincount(a)), _pairs(np.bincount(b))
    every = len(a) * (len(a) - 1) / 2
    # Both all in one cluster, or both all alone: nothing is left to chance, and they agree.
    if in_a == in_b and in_a in (0.0, every):
        return 1.0
    chance = in_a * in_b / every
    return float((both - chance) / ((in_a + in_b) / 2 - chance))


def _pairs(sizes: npt.NDArray[np.int64]) -> float:
    """Number of pairs inside groups of these sizes."""
    return float((sizes * (sizes - 1) // 2).sum())


def paper_distance(models: npt.ArrayLike, truths: npt.ArrayLike) -> float:
    """IFCA's distance (section 6.1): the mean over models of the distance to the nearest truth. Both: (k, d).

    It lets two models sit on one truth while another truth has none; `matched_distance` does not.
    """
    return float(_distances(models, truths).min(axis=1).mean())


def matched_distance(models: npt.ArrayLike, truths: npt.ArrayLike) -> float:
    """The mean distance of models to truths under the best one-to-one match (Hungarian algorithm). Both: (k, d)."""
    from scipy.optimize import linear_sum_assignment

    distances = _distances(models, truths)
    return float(distances[linear_sum_assignment(distances)].mean())


def _distances(models: npt.ArrayLike, truths: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Euclidean distance (k, k) of every model to every truth."""
    found, true = np.asarray(models, dtype=np.float64), np.asarray(truths, dtype=np.float64)
    if found.shape != true.shape or found.ndim != 2 or len(found) == 0:
        raise ValueError(f"models have shape {found.shape} and truths {true.shape}, expected the same (k, d)")
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(found, true))
