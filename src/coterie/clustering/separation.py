"""How far groups stand apart: the separation gap and the bounds of Theorem 1 (the CFL paper, eqs. 16-36).

Everything here that takes `groups` needs the hidden truth, so it serves metrics and tests, never a method's decision.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.clustering.bipartition import FloatMatrix, bipartition

Floats = npt.NDArray[np.float64]
Labels = npt.ArrayLike


def alpha_intra_min(similarity: FloatMatrix, groups: Labels) -> float:
    """The smallest similarity of two clients of one group (eq. 19); 1 if no group has two members.

    similarity: (M, M); groups: (M,) labels.
    """
    together = _same_group(similarity, groups)
    return float(np.min(similarity, initial=1.0, where=together))


def alpha_cross_max(similarity: FloatMatrix, groups: Labels) -> float:
    """The largest similarity of two clients of different groups; -1 if there is only one group.

    similarity: (M, M); groups: (M,) labels. For two groups it is what the bipartition minimises (eq. 23).
    """
    apart = ~_same_group(similarity, groups)
    return float(np.max(similarity, initial=-1.0, where=apart))


def separation_gap(similarity: FloatMatrix, groups: Labels) -> float:
    """g(α) of eq. 27: the smallest similarity inside a group minus the largest across the *optimal* split in two.

    similarity: (M, M) with M >= 2; groups: (M,) labels. A positive gap proves the optimal split correct (Corollary 1).
    """
    return alpha_intra_min(similarity, groups) - bipartition(similarity).alpha_cross_max


def _same_group(similarity: FloatMatrix, groups: Labels) -> npt.NDArray[np.bool_]:
    """Which pairs (M, M) share a label."""
    labels = np.asarray(groups)
    if labels.shape != (len(similarity),):
        raise ValueError(f"groups have shape {labels.shape}, expected ({len(similarity)},)")
    same: npt.NDArray[np.bool_] = labels[:, None] == labels[None, :]
    return same


def gamma(gradient: npt.ArrayLike, true_gradient: npt.ArrayLike) -> Floats:
    """γ of eq. 16: the noise of gradients relative to the true ones, ‖∇R − ∇r‖ / ‖∇R‖.

    gradient, true_gradient: (..., d), broadcast against each other; returns (...). Where the true gradient is zero it
    is infinite, or 0 if the other is zero as well.
    """
    seen, true = np.asarray(gradient, dtype=np.float64), np.asarray(true_gradient, dtype=np.float64)
    noise = np.linalg.norm(true - seen, axis=-1)
    length = np.broadcast_to(np.linalg.norm(true, axis=-1), noise.shape)
    return np.asarray(np.divide(noise, length, out=np.where(noise > 0, np.inf, 0.0), where=length > 0))


def H_ij(gamma_i: npt.ArrayLike, gamma_j: npt.ArrayLike) -> Floats:
    """H of eq. 18, the cosine of the largest angle by which noise can part two clients of one group.

    It is Theorem 1's lower bound on their similarity (eq. 19). Noise with γ >= 1 can turn a gradient anywhere, so it
    gives the trivial bound, -1.
    """
    first, second = np.asarray(gamma_i, dtype=np.float64), np.asarray(gamma_j, dtype=np.float64)
    if (first < 0).any() or (second < 0).any():
        raise ValueError("gamma is negative, expected a ratio of norms")
    a, b = np.minimum(first, 1.0), np.minimum(second, 1.0)
    bound = -a * b + np.sqrt(1 - a**2) * np.sqrt(1 - b**2)
    return np.asarray(np.where((first < 1) & (second < 1), bound, -1.0))


def cross_bound(gamma_i: npt.ArrayLike, gamma_j: npt.ArrayLike, distributions: int) -> Floats:
    """Theorem 1's upper bound (eq. 17) on the similarity of clients i and j across the best split in two.

    `distributions` is K >= 2. With K = 2 it is -H (eq. 20). The bound on alpha_cross_max is the largest of these over
    the pairs that the split tears apart.
    """
    if distributions < 2:
        raise ValueError(f"distributions is {distributions}, expected at least 2: one alone cannot be separated")
    h = H_ij(gamma_i, gamma_j)
    if distributions == 2:
        return -h
    angle = np.pi / (distributions - 1)
    bound = np.cos(angle) * h + np.sin(angle) * np.sqrt(1 - h**2)
    return np.asarray(np.where(h >= np.cos(angle), bound, 1.0))


def separation_guaranteed(gamma_max: npt.ArrayLike, distributions: int) -> npt.NDArray[np.bool_]:
    """Whether Theorem 1 alone proves a correct split when no client's γ exceeds `gamma_max` (Figure 3, green area)."""
    return np.asarray(H_ij(gamma_max, gamma_max) > cross_bound(gamma_max, gamma_max, distributions))


def gamma_criterion(alpha_cross_max: float) -> float:
    """The noise level below which a split with this similarity across is surely correct: sqrt((1 − α)/2), eq. 36."""
    return float(np.sqrt(max(0.0, (1.0 - alpha_cross_max) / 2.0)))
