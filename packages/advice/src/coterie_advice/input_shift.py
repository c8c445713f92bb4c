"""Do the inputs of two groups of samples differ? A linear classifier that tries to tell them apart answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.randomness import numpy_generator

Numbers = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

RIDGE = 0.1
"""Strength of the ridge penalty beside standardised features, whose variance is 1."""
NO_SPREAD = 1e-9
"""Standard deviation, beside the largest mean, below which a feature is constant."""
FARTHEST = 3.0
"""Standard deviations at which the square of a feature stops to grow."""
FEWEST = 10
"""Samples of each side without which nothing is said."""
MOST_TOKENS = 1000
"""Of tokens, counts of so many of the commonest are the features."""


@dataclass(frozen=True)
class Separation:
    """How well a linear classifier tells two sides' inputs apart."""

    auc: float
    """Chance that of one held-out sample of each side the right one gets the higher score; 0.5: not at all."""
    p: float
    """Chance of so high an AUC if the inputs did not differ (Mann-Whitney, one-sided)."""


def separation(first: Numbers, second: Numbers, seed: int = 0) -> Separation | None:
    """Train a ridge classifier on half of both sides' inputs and their squares, try it on the other half, and in turn.

    Args:
        first: inputs `(n, d)` of one side.
        second: inputs `(m, d)` of the other.
        seed: what the halves are drawn by.

    Returns:
        The AUC and its p-value; None where a side has too few samples.
    """
    from scipy.stats import mannwhitneyu

    if min(len(first), len(second)) < FEWEST:
        return None
    halves = [_halves(side, numpy_generator(seed, "inputs", k)) for k, side in enumerate((first, second))]
    # Each half is scored by what was learned on the other; ranks make the two scores comparable.
    scores: tuple[list[Numbers], list[Numbers]] = ([], [])
    for learned, tried in ((0, 1), (1, 0)):
        held = [half[tried] for half in halves]
        found = _ranks(_scores(halves[0][learned], halves[1][learned], np.concatenate(held)))
        scores[0].append(found[: len(held[0])])
        scores[1].append(found[len(held[0]) :])
    right, wrong = np.concatenate(scores[0]), np.concatenate(scores[1])
    statistic, p = mannwhitneyu(right, wrong, alternative="greater")
    return Separation(float(statistic) / (len(right) * len(wrong)), float(p))


def _scores(first: Numbers, second: Numbers, tried: Numbers) -> Numbers:
    """A ridge classifier's scores `(n,)` of what is tried, high where it looks like the first side."""
    train = np.concatenate([first, second])
    mean, scale = train.mean(0), train.std(0)
    keep = scale > NO_SPREAD * max(1.0, float(np.abs(mean).max(initial=0)))

    def features(x: Numbers) -> Numbers:
        z = (x[:, keep] - mean[keep]) / scale[keep]
        return np.concatenate([z, np.clip(z, -FARTHEST, FARTHEST) ** 2 - 1], axis=1)

    sides = np.concatenate([np.full(len(first), 1 / len(first)), np.full(len(second), -1 / len(second))])
    return np.asarray(features(tried) @ _ridge(features(train), sides * len(train) / 2))


def _ranks(values: Numbers) -> Numbers:
    from scipy.stats import rankdata

    return np.asarray(rankdata(values) / len(values))


def _halves(x: Numbers, generator: np.random.Generator) -> tuple[Numbers, Numbers]:
    mixed = x[generator.permutation(len(x))]
    return mixed[: len(x) // 2], mixed[len(x) // 2 :]


def _ridge(x: Numbers, y: Numbers) -> Numbers:
    """Ridge regression's weights `(d,)`, by the smaller of the two systems of equations."""
    n, d = x.shape
    if d <= n:
        return np.asarray(np.linalg.solve(x.T @ x / n + RIDGE * np.eye(d), x.T @ y / n))
    return np.asarray(x.T @ np.linalg.solve(x @ x.T / n + RIDGE * np.eye(n), y / n))


def as_features(first: npt.NDArray[np.generic], second: npt.NDArray[np.generic]) -> tuple[Numbers, Numbers]:
    """Inputs of two sides `(n, …)` as rows of real numbers: as they are, or of tokens the counts of each."""
    flat = [side.reshape(len(side), -1) for side in (first, second)]
    if np.issubdtype(first.dtype, np.floating):
        return flat[0].astype(np.float64), flat[1].astype(np.float64)
    tokens, counts = np.unique(np.concatenate(flat), return_counts=True)
    common = tokens[np.argsort(-counts, kind="stable")[:MOST_TOKENS]]
    made = [np.stack([(row[:, None] == common).sum(0) for row in side]).astype(np.float64) for side in flat]
    return made[0], made[1]


def alike_in_labels(first: Labels, second: Labels, seed: int = 0) -> tuple[Labels, Labels]:
    """Places of samples of two sides, drawn so that every label is there as often on both.

    Inputs that differ only because the labels are drawn in other proportions do not differ then.
    """
    places: tuple[list[Labels], list[Labels]] = ([], [])
    for label in np.intersect1d(first, second):
        own = [np.flatnonzero(side == label) for side in (first, second)]
        count = min(map(len, own))
        for k, at in enumerate(own):
            places[k].append(numpy_generator(seed, "alike", k, int(label)).permutation(at)[:count])
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *places[0]]), np.concatenate([none, *places[1]])
