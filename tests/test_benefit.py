"""The one test of everything that is decided automatically: by hand, under no difference, and with a liar."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from coterie.benefit import LIARS, benefit, level_of_look, trimmed_at_each_end


def test_without_trimming_it_is_students_test() -> None:
    values = np.array([0.3, 0.1, -0.2, 0.4, 0.2, 0.15])
    found = benefit(values)
    by_scipy = stats.ttest_1samp(values, 0.0, alternative="greater")
    assert found.gain == pytest.approx(values.mean())
    assert found.error == pytest.approx(values.std(ddof=1) / math.sqrt(6))
    assert found.p_value == pytest.approx(by_scipy.pvalue)


def test_the_trimmed_test_by_hand() -> None:
    """Tukey and McLaughlin (1963): of ten, the smallest and the largest are left out, and winsorised for the error."""
    values = [-50.0, 1, 2, 3, 4, 5, 6, 7, 8, 900.0]
    winsorised = np.array([1, 1, 2, 3, 4, 5, 6, 7, 8, 8])
    error = winsorised.std(ddof=1) / (0.8 * math.sqrt(10))
    found = benefit(values)
    assert found.gain == pytest.approx(4.5)
    assert found.error == pytest.approx(error)
    assert found.p_value == pytest.approx(stats.t.sf(4.5 / error, 7))


@pytest.mark.parametrize("lie", [1e9, -1e9, math.nan, math.inf])
def test_one_of_twenty_neither_forces_nor_vetoes(lie: float) -> None:
    random = np.random.default_rng(0)
    better, alike = 0.3 + 0.1 * random.standard_normal(20), 0.1 * random.standard_normal(20)
    alike -= alike.mean()
    assert benefit([lie, *better[1:]]).p_value < 1e-6
    assert benefit([lie, *alike[1:]]).p_value > 0.1


@pytest.mark.parametrize("clients", [6, 8, 20, 100])
def test_under_no_difference_the_level_holds(clients: int) -> None:
    random = np.random.default_rng(1)
    found = [benefit(random.standard_normal(clients)).p_value for _ in range(4000)]
    assert np.mean(np.array(found) <= 0.05) <= 0.06


def test_few_clients_are_judged_by_their_samples() -> None:
    found = benefit([0.3, 0.1], within=[0.01, 0.03])
    assert found.gain == pytest.approx(0.2)
    assert found.error == pytest.approx(0.1)
    assert found.p_value == pytest.approx(stats.norm.sf(2.0))
    assert benefit([]).clients == 0


def test_few_clients_whose_samples_say_nothing_are_judged_by_students_test() -> None:
    by_scipy = stats.ttest_1samp([0.3, 0.1, 0.2], 0.0, alternative="greater")
    assert benefit([0.3, 0.1, 0.2]).p_value == pytest.approx(by_scipy.pvalue)
    assert benefit([0.3, 0.1, 0.2], within=[math.nan, 0.01, 0.01]).p_value == pytest.approx(by_scipy.pvalue)
    assert benefit([0.3]).p_value == 1.0  # one number has no spread: that is no certainty


def test_at_least_six_are_left_and_the_share_is_that_of_liars() -> None:
    assert [trimmed_at_each_end(count) for count in (6, 7, 8, 20, 21, 100)] == [0, 0, 1, 1, 2, 100 * LIARS]
    assert [trimmed_at_each_end(count, liars=3) for count in (6, 8, 10, 20, 100)] == [0, 1, 2, 3, 100 * LIARS]


def test_the_levels_of_all_looks_sum_to_the_stated_one() -> None:
    assert sum(level_of_look(0.05, look) for look in range(1, 100_000)) == pytest.approx(0.05, rel=1e-4)


def test_the_words_are_made_of_the_numbers() -> None:
    assert str(benefit([0.3, 0.1], within=[0.01, 0.03])) == "0.2 ± 0.1 (p = 0.02, 2 clients)"
