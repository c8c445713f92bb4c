"""The account of differential privacy against closed forms, numerical integration, and an established package."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate

from coterie.privacy.accounting import epsilon, noise_for, rdp


def test_without_sampling_a_round_is_the_plain_gaussian_mechanism():
    assert rdp(2.0, 1.0, 10) == 10 / 8
    # By hand: z = 4, 100 rounds, δ = 1e-5. RDP is α · 100/32 = 3.125 α; at α = 3, which is the best whole order,
    # ε = 9.375 + ln(2/3) − (ln 1e-5 + ln 3)/2 = 9.375 − 0.4055 + 5.2072 = 14.1767.
    assert epsilon(4.0, 1.0, 100, 1e-5) == pytest.approx(14.1767, abs=1e-3)


@pytest.mark.parametrize(("noise", "rate", "order"), [(1.0, 0.1, 4), (2.0, 0.5, 8), (0.8, 0.01, 3)])
def test_the_sampled_gaussian_is_the_divergence_that_integration_finds(noise, rate, order):
    def density(x, mean):
        return math.exp(-((x - mean) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))

    def integrand(x):
        base = density(x, 0.0)
        mixed = (1 - rate) * base + rate * density(x, 1.0)
        return (mixed / base) ** order * base if base > 0 else 0.0

    top = 12 * noise + order
    value, _ = integrate.quad(integrand, -12 * noise, top, limit=500, points=list(np.linspace(0, order, 5)))
    assert rdp(noise, rate, order) == pytest.approx(math.log(value) / (order - 1), rel=1e-5)


def test_more_noise_fewer_rounds_and_rarer_clients_give_less_away():
    base = epsilon(1.0, 0.1, 100, 1e-5)
    assert epsilon(1.5, 0.1, 100, 1e-5) < base < epsilon(0.8, 0.1, 100, 1e-5)
    assert epsilon(1.0, 0.05, 100, 1e-5) < base < epsilon(1.0, 0.2, 100, 1e-5)
    assert epsilon(1.0, 0.1, 50, 1e-5) < base < epsilon(1.0, 0.1, 200, 1e-5)
    assert epsilon(1.0, 0.1, 0, 1e-5) == 0.0
    assert math.isinf(epsilon(0.0, 0.1, 1, 1e-5))


def test_the_noise_for_a_target_meets_it_closely():
    noise = noise_for(3.0, 0.2, 60, 1e-5)
    assert 2.9 < epsilon(noise, 0.2, 60, 1e-5) <= 3.0


def test_a_published_value_of_the_moments_accountant_is_matched_or_bettered():
    # Abadi et al. 2016: z = 4, q = 0.01, 10 000 steps, δ = 1e-5 give ε ≈ 1.26.
    assert 0.9 < epsilon(4.0, 0.01, 10_000, 1e-5) <= 1.26


def test_it_agrees_with_dp_accounting():
    dp = pytest.importorskip("dp_accounting")
    account = dp.rdp.RdpAccountant()
    account.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.2)), 50)
    assert epsilon(1.2, 0.1, 50, 1e-5) == pytest.approx(account.get_epsilon(1e-5), rel=0.02)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="delta=0"):
        epsilon(1.0, 1.0, 1, 0.0)
