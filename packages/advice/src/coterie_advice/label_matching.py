"""Which label of one cluster is which label of another: the best one-to-one matching of two models' confusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]

IDENTITY_BONUS = 1e-6
"""What a label gains by keeping its name: it decides ties only."""
CLEAR = 0.35
"""The agreement from which a label's other name is clear.

Chosen on digits (swapped, permuted, rotated and iid, 2 and 4 groups, 30 or all samples, 4 or 20 rounds, MLP and
logistic, seeds 0 and 1): at 0.5 a fifth of the right names was called doubtful where models were half trained.
"""


@dataclass(frozen=True)
class LabelMatch:
    """Labels of a first cluster and what each is called in a second one."""

    renamed: dict[int, int]
    """The second cluster's label for each matched label of the first."""
    agreement: dict[int, float]
    """By the first cluster's label: the mean share of samples, over both models, that speak for the match."""

    @property
    def moved(self) -> dict[int, int]:
        """The labels that change their names, where that is clear."""
        return {a: b for a, b in self.renamed.items() if a != b and self.agreement[a] >= CLEAR}

    @property
    def doubtful(self) -> dict[int, int]:
        """The labels that would change their names by the best match, where that is not clear."""
        return {a: b for a, b in self.renamed.items() if a != b and self.agreement[a] < CLEAR}

    def forward(self, labels: Counts) -> Counts:
        """Labels of the first cluster `(n,)` by the second's names; those that did not clearly move stay."""
        return _renamed(labels, self.moved)

    def backward(self, labels: Counts) -> Counts:
        """Labels of the second cluster `(n,)` by the first's names; those that did not clearly move stay."""
        return _renamed(labels, {b: a for a, b in self.moved.items()})


def _renamed(labels: Counts, names: dict[int, int]) -> Counts:
    found = labels.copy()
    for old, new in names.items():
        found[labels == old] = new
    return found


def confusion(truth: npt.ArrayLike, predicted: npt.ArrayLike, classes: int) -> Counts:
    """How often a sample of label j is called i: counts `(classes, classes)` with rows j, columns i."""
    rows, columns = np.asarray(truth, dtype=np.int64), np.asarray(predicted, dtype=np.int64)
    counts = np.bincount(rows * classes + columns, minlength=classes * classes)
    return counts.reshape(classes, classes)


def match_labels(first_on_second: npt.ArrayLike, second_on_first: npt.ArrayLike) -> LabelMatch:
    """Match the labels of two clusters one-to-one, so that their models agree as much as they can (Hungarian).

    Args:
        first_on_second: `(C, C)` the second cluster's labels by what the first's model calls such samples.
        second_on_first: `(C, C)` the first cluster's labels by what the second's model calls such samples.

    Returns:
        The match of the labels that both sides hold samples of. Every label counts alike, however rare it is.
    """
    from scipy.optimize import linear_sum_assignment

    there, here = np.asarray(first_on_second), np.asarray(second_on_first)
    firsts, seconds = np.flatnonzero(here.sum(1)), np.flatnonzero(there.sum(1))
    # Entry (i, j): is label i of the first cluster label j of the second?
    agreement = (_by_row(there).T + _by_row(here)) / 2
    gain = (agreement + IDENTITY_BONUS * np.eye(len(agreement)))[np.ix_(firsts, seconds)]
    rows, columns = linear_sum_assignment(gain, maximize=True)
    renamed = {int(firsts[a]): int(seconds[b]) for a, b in zip(rows, columns, strict=True)}
    return LabelMatch(renamed, {a: float(agreement[a, b]) for a, b in renamed.items()})


def _by_row(counts: npt.NDArray[np.int64]) -> Shares:
    """Shares of each row, zero where a row is empty."""
    return np.asarray(counts / np.maximum(counts.sum(1, keepdims=True), 1))


def cycles(moved: dict[int, int]) -> list[list[int]]:
    """The chains in which labels take each other's names, each from its smallest label on.

    A chain of two that closes is a swap. A chain that does not close ends with the label that nobody gives on.
    """
    left, found = dict(moved), []
    targets = set(moved.values())
    for start in [*sorted(a for a in moved if a not in targets), *sorted(moved)]:
        if start not in left:
            continue
        chain = [start]
        while chain[-1] in left:
            chain.append(left.pop(chain[-1]))
        found.append(chain)
    return found


def in_words(moved: dict[int, int], names: Sequence[object] = ()) -> str:
    """What becomes of the labels, as in "3 and 7 are swapped; 0 → 4, 1 → 2"; empty where all keep their names."""

    def name(label: int) -> str:
        return str(names[label]) if names else str(label)

    chains = cycles(moved)
    swaps = [chain for chain in chains if len(chain) == 3 and chain[0] == chain[-1]]
    others = sorted({a: b for chain in chains if chain not in swaps for a, b in pairwise(chain)}.items())
    parts = []
    if swaps:
        pairs = [f"{name(a)} and {name(b)}" for a, b, _ in swaps]
        parts.append(f"{', '.join(pairs)} are swapped")
    if others:
        parts.append(", ".join(f"{name(a)} → {name(b)}" for a, b in others))
    return "; ".join(parts)
