"""When to split: exponents of known curves, trials with known gains."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.methods.splitting import (
    Evidence,
    at_rest,
    auto_epsilon1,
    exponents,
    has_flattened,
    local_exponent,
    trial_gain,
)


@given(p=st.floats(0.0, 2.0), scale=st.floats(0.01, 100.0), n=st.integers(8, 200))
def test_the_exponent_of_a_power_law_is_its_power(p: float, scale: float, n: int) -> None:
    losses = [scale * t**-p for t in range(1, n + 1)]
    assert local_exponent(losses, n // 2, n) == pytest.approx(p, abs=1e-6)
    assert exponents(losses) == pytest.approx((p, p), abs=1e-6)


def test_a_plateau_has_flattened_a_power_law_has_not_nor_a_slow_start() -> None:
    falling = [2.3 * t**-0.8 for t in range(1, 41)]
    plateau = [1.6 + 0.7 * math.exp(-t / 5) for t in range(1, 41)]
    slow_start = [2.3 - 0.00004 * t**2.5 for t in range(1, 41)]
    assert not has_flattened(falling, 0.3)
    assert has_flattened(plateau, 0.3)
    assert exponents(slow_start)[0] < 0.3
    assert not has_flattened(slow_start, 0.3)
    assert not has_flattened(plateau[:7], 0.3)


def test_the_papers_criteria() -> None:
    assert at_rest(0.01, 1.0, 0.02, 0.5)
    assert not at_rest(0.03, 1.0, 0.02, 0.5)
    assert not at_rest(0.01, 0.4, 0.02, 0.5)
    assert auto_epsilon1(5.0) == 0.5


def test_evidence_compares_separation_with_noise() -> None:
    seen = Evidence(mean_norm=0.1, max_norm=1.0, alpha_cross_max=-0.28, noise=0.7)
    assert seen.separation == pytest.approx(0.8)
    assert seen.is_signal
    assert not Evidence(0.1, 1.0, -0.28, noise=0.81).is_signal
    assert not Evidence(0.1, 1.0, -0.28).is_signal  # unknown noise proves nothing
    assert "exponent" not in seen.numbers()


def test_trial_gain_is_stratified_by_branch() -> None:
    # One branch gains 2 of 4, the other 0 of 4, each without any spread: a certain gain of 1, a quarter of the loss.
    assert trial_gain([[(4.0, 2.0), (4.0, 2.0)], [(4.0, 4.0), (4.0, 4.0)]]) == (1.0, 0.0, 0.25)
    gain, error, relative = trial_gain([[(3.0, 2.0), (3.0, 0.0)], [(3.0, 3.0), (3.0, 2.0), (3.0, 1.0)]])
    assert gain == pytest.approx(7 / 5)
    assert error == pytest.approx(math.sqrt((2 * 2.0 + 3 * 1.0) / 25))
    assert relative == pytest.approx(7 / 15)
    assert trial_gain([[(2.0, 1.5)], [(math.nan, math.nan)]]) == (0.5, 0.5, 0.25)
    assert trial_gain([[(math.nan, math.nan)], []]) == (0.0, math.inf, 0.0)
