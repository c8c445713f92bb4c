"""When a CFL cluster should be split: the paper's thresholds, or two questions without units.

*Can one model fit them all?* If it can, the loss keeps falling as a power of the rounds; if it cannot, it
flattens. *Is the split signal or noise?* It is signal when the two sides differ by more than the clients' own
sampling noise explains. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.clustering import gamma_criterion

LEAST_ROUNDS = 8
"""Rounds that a cluster must have had before its loss curve says anything."""


def local_exponent(losses: Sequence[float], start: int, stop: int) -> float:
    """p in loss ∝ round^−p, by least squares over rounds start…stop (counted from 1, both included)."""
    rounds = np.arange(start, stop + 1)
    x = np.log(rounds)
    y = np.log(np.maximum(np.asarray(losses[start - 1 : stop], dtype=float), 1e-12))
    x = x - x.mean()
    return float(-(x @ y) / (x @ x))


def exponents(losses: Sequence[float]) -> tuple[float, float]:
    """The local exponent over the last half of a cluster's rounds, and over the quarter before it."""
    n = len(losses)
    return local_exponent(losses, max(1, n // 2), n), local_exponent(losses, max(1, n // 4), max(2, n // 2))


def has_flattened(losses: Sequence[float], threshold: float, tolerance: float = 0.05) -> bool:
    """Has the loss stopped falling? Its exponent is small and not on the rise, as it is after a slow start."""
    if len(losses) < LEAST_ROUNDS:
        return False
    now, before = exponents(losses)
    return now < threshold and now < before + tolerance


def auto_epsilon1(largest_mean_norm: float) -> float:
    """ε1 = "auto": a tenth of the largest mean update that the cluster has had."""
    return largest_mean_norm / 10


EPSILON2_MULTIPLE = 4.0
"""ε2 = "auto" is this multiple of ε1 (the paper recommends 1 to 10)."""


@dataclass(frozen=True)
class Evidence:
    """What speaks for or against a split. `separation` is sqrt((1 − α_cross_max)/2), `noise` the γ it must exceed."""

    mean_norm: float
    max_norm: float
    alpha_cross_max: float
    noise: float = math.nan
    exponent: float = math.nan

    @property
    def separation(self) -> float:
        """sqrt((1 − α_cross_max)/2), eq. 36."""
        return gamma_criterion(self.alpha_cross_max)

    @property
    def is_signal(self) -> bool:
        """Do the two sides differ by more than noise? (eq. 36 with γ measured)"""
        return self.separation > self.noise

    def numbers(self) -> dict[str, float]:
        """The known numbers by name."""
        values = {
            "mean_norm": self.mean_norm,
            "max_norm": self.max_norm,
            "alpha_cross_max": self.alpha_cross_max,
            "separation": self.separation,
            "noise": self.noise,
            "exponent": self.exponent,
        }
        return {name: value for name, value in values.items() if not math.isnan(value)}


def at_rest(mean_norm: float, max_norm: float, epsilon1: float, epsilon2: float) -> bool:
    """The paper's criteria 30 and 31: the mean update has died down, some client's own has not."""
    return mean_norm < epsilon1 and max_norm > epsilon2


class Gain(NamedTuple):
    """What a trial split was worth: the mean fall of the members' validation loss, its error, and its size."""

    mean: float
    error: float
    relative: float
    """The fall as a share of the loss under the undivided model."""


def trial_gain(losses: Sequence[Sequence[tuple[float, float]]]) -> Gain:
    """The worth of a trial split; `losses[b]` are branch b's members' validation losses (whole, apart).

    The error is stratified: that one branch gains more than the other is no noise. A branch of one member has no
    spread of its own; its whole fall counts as possible noise. Members without validation data (NaN) are left out.
    """
    known = [np.asarray(branch, dtype=float).reshape(-1, 2) for branch in losses]
    known = [branch[np.isfinite(branch).all(axis=1)] for branch in known]
    total = sum(len(branch) for branch in known)
    if total == 0:
        return Gain(0.0, math.inf, 0.0)
    falls = [branch[:, 0] - branch[:, 1] for branch in known]
    mean = sum(float(fall.sum()) for fall in falls) / total
    before = sum(float(branch[:, 0].sum()) for branch in known) / total
    variance = 0.0
    for fall in falls:
        if len(fall):
            spread = float(fall.var(ddof=1)) if len(fall) > 1 else float(fall[0] ** 2)
            variance += len(fall) / total**2 * spread
    return Gain(mean, math.sqrt(variance), mean / before if before > 0 else 0.0)
