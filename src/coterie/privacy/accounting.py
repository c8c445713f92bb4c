"""What a run gives away of any one client, as a number: the ε of user-level differential privacy at a δ.

A round releases, per cluster, the sum of updates cut to length C plus Gaussian noise of standard deviation z · C, where
each client takes part with probability q by itself (Poisson sampling). The account is Rényi differential privacy of the
sampled Gaussian mechanism (Mironov, Talwar, Zhang 2019, for whole orders), added up over rounds, and turned into ε by
the conversion of Canonne, Kamath, Steinke (2020). Two federations are neighbours if one has a client more than the
other. Where clients add the noise themselves, its size tells how many they are; there two federations are neighbours
if a client sends zeros in one of them, who takes part is public, and q is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 384, 512)


@cache
def rdp(noise: float, rate: float, order: int) -> float:
    """Rényi divergence of order α for one round of the sampled Gaussian with noise multiplier z and rate q.

    For q = 1 it is α/(2z²); otherwise log(Σ_k C(α,k) (1−q)^(α−k) q^k exp(k(k−1)/(2z²)))/(α−1).
    """
    if rate == 0:
        return 0.0
    if noise == 0:
        return math.inf
    if rate == 1:
        return order / (2 * noise**2)
    terms = [
        math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
        + (order - k) * math.log1p(-rate) + k * math.log(rate) + k * (k - 1) / (2 * noise**2)
        for k in range(order + 1)
    ]  # fmt: skip
    largest = max(terms)
    return (largest + math.log(sum(math.exp(term - largest) for term in terms))) / (order - 1)


def epsilon(noise: float, rate: float, rounds: int, delta: float, orders: Sequence[int] = ORDERS) -> float:
    """The ε at `delta` of so many rounds, the least over the orders."""
    if not 0 < delta < 1 or not 0 <= rate <= 1 or noise < 0:
        raise ValueError(f"delta={delta}, rate={rate}, noise={noise}: expected 0 < delta < 1, a rate, and noise >= 0")
    if rounds == 0 or rate == 0:
        return 0.0
    found = (
        rounds * rdp(noise, rate, a) + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1) for a in orders
    )
    return max(0.0, min(found))


def noise_for(target: float, rate: float, rounds: int, delta: float) -> float:
    """The least noise multiplier (to 0.1 %) with which that many rounds stay within ε = `target`."""
    low, high = 1e-2, 1e4
    if epsilon(high, rate, rounds, delta) > target:
        raise ValueError(f"epsilon={target} cannot be reached with any noise")
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(middle, rate, rounds, delta) <= target else (middle, high)
    return high
