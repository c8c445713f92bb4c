"""The account of differential privacy against dp-accounting's own accountants, Opacus's rule, and published figures."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from coterie.privacy.accounting import epsilon, noise_for

dp = pytest.importorskip("dp_accounting")
CELLS = [
    *itertools.product((0.4, 0.7, 1.0, 2.0, 4.0), (0.01, 0.05, 0.2, 0.5, 1.0), (1, 10, 30, 100, 300)),
]


def loss_distribution(noise: float, rate: float, rounds: int, delta: float) -> float:
    """ε by dp-accounting's accountant of privacy loss distributions, on a grid of its own."""
    rough = epsilon(noise, rate, rounds, delta)
    account = dp.pld.PLDAccountant(value_discretization_interval=max(1e-4, rough / 20_000))
    account.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), rounds)
    return float(account.get_epsilon(delta))


@pytest.mark.long
@pytest.mark.parametrize("noise", sorted({cell[0] for cell in CELLS}))
def test_it_is_within_a_hundredth_of_dp_accountings_loss_distributions(noise):
    cells = [cell for cell in CELLS if cell[0] == noise]
    ours = np.array([epsilon(*cell, 1e-5) for cell in cells])
    theirs = np.array([loss_distribution(*cell, 1e-5) for cell in cells])
    np.testing.assert_allclose(ours, theirs, rtol=0.01, atol=1e-6)


def test_it_is_never_above_the_renyi_account_that_opacus_and_flower_use():
    for noise, rate, rounds in [(1.0, 0.1, 50), (0.7, 0.5, 20), (2.0, 0.05, 200), (1.2, 1.0, 10)]:
        account = dp.rdp.RdpAccountant(list(range(2, 65)))
        account.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), rounds)
        assert 0.7 * account.get_epsilon(1e-5) < epsilon(noise, rate, rounds, 1e-5) <= account.get_epsilon(1e-5)


def test_without_sampling_it_is_the_gaussian_mechanism_by_its_definition():
    # Balle and Wang 2018, equation 6: δ = Φ(1/(2σ) − εσ) − e^ε Φ(−1/(2σ) − εσ), where σ = z/√rounds.
    for noise, rounds in [(1.0, 1), (4.0, 100), (2.0, 7)]:
        found, sigma = epsilon(noise, 1.0, rounds, 1e-5), noise / math.sqrt(rounds)
        below = math.exp(found + norm.logcdf(-1 / (2 * sigma) - found * sigma))
        assert norm.cdf(1 / (2 * sigma) - found * sigma) - below == pytest.approx(1e-5, rel=1e-4)


def test_more_noise_fewer_rounds_and_rarer_clients_give_less_away():
    base = epsilon(1.0, 0.1, 100, 1e-5)
    assert epsilon(1.5, 0.1, 100, 1e-5) < base < epsilon(0.8, 0.1, 100, 1e-5)
    assert epsilon(1.0, 0.05, 100, 1e-5) < base < epsilon(1.0, 0.2, 100, 1e-5)
    assert epsilon(1.0, 0.1, 50, 1e-5) < base < epsilon(1.0, 0.1, 200, 1e-5)
    assert epsilon(1.0, 0.1, 0, 1e-5) == 0.0
    assert math.isinf(epsilon(0.0, 0.1, 1, 1e-5))


@pytest.mark.parametrize("noise", [1e-9, 1e-3, 0.02, 1e3])
@pytest.mark.parametrize("delta", [1e-30, 1e-5, 0.49])
def test_extremes_have_an_epsilon_no_higher_than_that_of_all_clients(noise, delta):
    assert 0 <= epsilon(noise, 0.1, 10, delta) <= epsilon(noise, 1.0, 10, delta) < math.inf


def test_the_noise_for_a_target_meets_it_closely():
    noise = noise_for(3.0, 0.2, 60, 1e-5)
    assert 2.9 < epsilon(noise, 0.2, 60, 1e-5) <= 3.0


def test_a_published_value_of_the_moments_accountant_is_bettered():
    # Abadi et al. 2016: z = 4, q = 0.01, 10 000 steps, δ = 1e-5 give ε ≈ 1.26.
    assert 0.9 < epsilon(4.0, 0.01, 10_000, 1e-5) <= 1.0


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="delta=0"):
        epsilon(1.0, 1.0, 1, 0.0)
