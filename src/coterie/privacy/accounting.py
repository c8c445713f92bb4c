"""What a run gives away of any one client, as a number: the ε of user-level differential privacy at a δ.

A round releases, per cluster, the sum of updates cut to length C plus Gaussian noise of standard deviation z · C, where
each client takes part with probability q by itself (Poisson sampling). Two federations are neighbours if one has a
client more than the other. The accountant is Google's `dp-accounting`: rounds with all clients are one Gaussian
mechanism, whose ε is exact (Balle, Wang 2018); with sampling, privacy loss distributions on a grid (Koskela, Jälkö,
Honkela 2020; Doroshenko et al. 2022), whose ε is never below the true one.

Where clients add the noise themselves, its size shows how many they are; there two federations are neighbours if a
client sends zeros in one of them, who takes part is public, and q is one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from coterie.errors import extra

PRECISION = 1e-3
"""The grid is made finer until ε falls by less than this share of it."""
POINTS = 256
"""Points of the first grid up to the ε of rounds with all clients, which bounds the one sought."""
WIDEST = 64.0
"""The widest grid: much wider, and exp overflows."""
MOST = WIDEST * 2**20
"""An ε beyond this means nothing: the bound is given as it is."""


@lru_cache(maxsize=2**12)
def epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """The ε at `delta` after `rounds` rounds with noise multiplier z and sampling rate q."""
    if not 0 < delta < 1 or not 0 <= rate <= 1 or noise < 0:
        raise ValueError(f"delta={delta}, rate={rate}, noise={noise}: expected 0 < delta < 1, a rate, and noise >= 0")
    if rounds == 0 or rate == 0:
        return 0.0
    if noise == 0:
        return math.inf
    with extra("dp", "differential privacy"):
        from dp_accounting import get_epsilon_gaussian
    try:
        with np.errstate(all="ignore"):
            bound = float(get_epsilon_gaussian(noise / math.sqrt(rounds), delta))
    except RuntimeError:  # its search finds none for noise that is all but zero
        return math.inf
    return bound if rate == 1 or not 0 < bound < MOST else min(bound, _sampled(noise, rate, rounds, delta, bound))


def _sampled(noise: float, rate: float, rounds: int, delta: float, bound: float) -> float:
    """The ε by privacy loss distributions; infinite where δ is below what their tails resolve."""
    interval, before, found = WIDEST, math.inf, bound
    while 0 < found < math.inf and (before - found > PRECISION * found or found < POINTS * interval):
        interval = 2.0 ** math.floor(math.log2(min(interval, found / POINTS) / 2))  # rounds share their grids
        before, found = found, _one_round(noise, rate, interval).self_compose(rounds).get_epsilon_for_delta(delta)
    return float(found)


@lru_cache(maxsize=64)
def _one_round(noise: float, rate: float, interval: float) -> Any:
    """The distribution of the privacy loss of one round, on a grid of that width."""
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=interval, sampling_prob=rate
    )


def noise_for(target: float, rate: float, rounds: int, delta: float) -> float:
    """The least noise multiplier (to 0.1 %) with which that many rounds stay within ε = `target`."""
    low, high = 1e-2, 1e4
    if epsilon(high, rate, rounds, delta) > target:
        raise ValueError(f"epsilon={target} cannot be reached with any noise")
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(middle, rate, rounds, delta) <= target else (middle, high)
    return high
