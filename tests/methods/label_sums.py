"""What sides report of each other's steps, made up for tests of CFL's rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def label_sums(own: float, others: Sequence[Sequence[Sequence[float]]]) -> np.ndarray:
    """LabelSums `(8, labels + 1)` of units, from the gains by the other side's step of each sample of each label.

    `others[unit][label]` are those of the samples; every sample gains `own` by the step of its own side.
    """
    units = []
    for labels in others:
        each = [np.asarray(samples, dtype=float) for samples in labels]
        units.append([*each, np.concatenate(each)])
    n, total, squares = (
        np.array([[f(samples) for samples in unit] for unit in units]) for f in (len, np.sum, lambda x: (x**2).sum())
    )
    return np.stack([x.sum(0) for x in (n > 0, n, own * n, total, total**2, total * n, n**2, squares)]).astype(float)
