"""Do two sides conflict? The tests of CFL by hand, against brute force, and under the null."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_sums import label_sums
from scipy import stats

from coterie.methods import cfl_harm


def test_one_label_is_judged_by_a_t_test_over_its_samples() -> None:
    gains = [-1.0, -2.0, 0.5, -1.5, -0.4, -1.1, 0.2, -0.9]
    # The means of the four units, −1.5, −0.5, −0.75 and −0.35, spread less than those of independent samples would.
    sums = label_sums(2.0, [[gains[i : i + 2]] for i in range(0, 8, 2)])
    seen = cfl_harm.harm_of(sums, sums)
    t = stats.ttest_1samp(gains, 0).statistic
    assert seen.p_value == pytest.approx(stats.t.cdf(t, 3))  # three degrees of freedom: four units
    assert seen.harm == pytest.approx(-sum(gains) / 16)
    assert (seen.gain, seen.shared, seen.samples) == (2, 1, 8)


def test_units_whose_samples_are_alike_make_a_test_less_sure() -> None:
    means = np.repeat([-1.0, -2.0, 0.5, -1.5, -0.4, -1.1], 5).reshape(6, 5)
    noise = 0.1 * np.random.default_rng(0).standard_normal(means.shape)
    sums = label_sums(2.0, [[row.tolist()] for row in means + noise])
    seen = cfl_harm.harm_of(sums, sums)
    by_units = stats.ttest_1samp((means + noise).mean(1), 0, alternative="less").pvalue
    assert seen.p_value == pytest.approx(by_units, rel=0.1)
    by_samples = stats.ttest_1samp((means + noise).ravel(), 0, alternative="less").pvalue
    assert by_samples < by_units / 100


def test_what_units_share_is_estimated_over_all_labels_together() -> None:
    generator = np.random.default_rng(1)
    # One client, two units: by one label alone a t-test over the units has one degree of freedom.
    sums = label_sums(2.0, [[(generator.standard_normal(6) - 1.5).tolist() for _ in range(8)] for _ in range(2)])
    one = np.stack([sums[:, 0], sums[:, 0]], axis=1)
    assert cfl_harm.harm_of(sums, sums).p_value < 1e-6
    assert cfl_harm.harm_of(one, one).p_value > 0.01


def test_only_labels_that_both_sides_hold_count() -> None:
    harmed = [[[-5.0 - i / 10 for i in range(9)], [1.0]]] * 6
    mine, theirs = label_sums(3.0, harmed), label_sums(3.0, [[[1.0], [1.0] * 9]] * 6)
    seen = cfl_harm.harm_of(mine, theirs)
    assert seen.p_value == 1
    assert seen.shared == pytest.approx(0.1)
    assert cfl_harm.harm_of(mine, mine).p_value < 1e-4


def p_values_without_harm(shared: float) -> np.ndarray:
    """Of 400 pairs of sides, whose samples gain nothing in the mean; units differ by `shared`, in all labels alike."""
    generator, found = np.random.default_rng(5), []
    for _ in range(400):
        sides = []
        for _ in range(2):
            units, samples = generator.standard_normal((12, 1, 1)), generator.standard_normal((12, 5, 6))
            sides.append(label_sums(1.0, (shared * units + samples).tolist()))
        found.append(cfl_harm.conflict_p_value((cfl_harm.harm_of(*sides), cfl_harm.harm_of(*sides[::-1]))))
    return np.array(found)


def test_without_harm_p_values_are_uniform_or_larger() -> None:
    found = p_values_without_harm(0.0)
    for level in (0.01, 0.05, 0.2):
        assert np.mean(found <= level) <= level + 3 * np.sqrt(level / 400)


def test_what_all_labels_of_a_unit_share_makes_p_values_too_small() -> None:
    # The product takes labels as independent: this says how wrong that is, and why CONFLICT is far below 5 %.
    found = p_values_without_harm(1 / 3)
    assert 0.01 < np.mean(found <= 0.01) < 0.08
    assert np.mean(found <= cfl_harm.CONFLICT) <= 0.01


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_the_truncated_product_of_uniform_p_values_is_uniform_below_where_none_is_seen(seed: int, labels: int) -> None:
    draws = np.random.default_rng(seed).random((400, labels))
    found = np.array([cfl_harm.truncated_product(draw) for draw in draws])
    none = (1 - cfl_harm.SEEN) ** labels
    assert (found[(draws > cfl_harm.SEEN).all(1)] == 1).all()
    for level in (0.3, 0.1):
        if level < 1 - none:
            assert np.mean(found <= level) == pytest.approx(level, abs=4 * math.sqrt(level / 400))


def test_the_truncated_product_by_hand() -> None:
    # One of one: the p-value itself. One small of two: 2 · 0.95 · p + P(U₁U₂ ≤ p, both ≤ 0.05).
    assert cfl_harm.truncated_product([0.01]) == pytest.approx(0.01)
    both = 0.01 * (1 + math.log(0.05**2 / 0.01)) if 0.01 < 0.05**2 else 0.05**2
    assert cfl_harm.truncated_product([0.01, 0.6]) == pytest.approx(2 * 0.95 * 0.01 + both)
    assert cfl_harm.truncated_product([0.2, 0.6]) == 1
    assert cfl_harm.truncated_product([]) == 1
    # Two small ones of ten, as where a group has swapped two labels, say more than one.
    rest = [0.5] * 8
    assert cfl_harm.truncated_product([1e-3, 1e-3, *rest]) < cfl_harm.truncated_product([1e-4, 0.5, *rest])


def harm(p: float, gain: float = 0.1, samples: float = 50.0) -> cfl_harm.Harm:
    """A side that is harmed, with this p-value."""
    return cfl_harm.Harm(p, 0.5, gain, 1.0, samples)


@pytest.mark.parametrize(
    ("p", "expected"), [((1e-4, 1e-4), True), ((1e-9, 0.2), False), ((0.04, 0.04), False), ((1e-6, 0.04), True)]
)
def test_a_conflict_harms_both_sides(p: tuple[float, float], expected: bool) -> None:
    sides = harm(p[0]), harm(p[1])
    assert cfl_harm.is_conflict(sides) == expected
    assert not cfl_harm.is_conflict((sides[0]._replace(harm=0.01), sides[1]))


def test_sides_that_differ_in_their_labels_must_conflict_the_more_surely() -> None:
    for shared, p, expected in ((0.8, 1e-6, False), (0.8, 1e-9, True), (0.4, 1e-9, False)):
        side = harm(p)._replace(shared=shared)
        assert cfl_harm.is_conflict((side, side)) == expected


def test_a_side_that_the_model_fits_already_needs_gain_nothing() -> None:
    fitted = harm(1e-5, gain=-0.01, samples=90.0)
    for other, expected in ((0.1, True), (0.02, False)):  # in all they gain −0.9 + 3, or −0.9 + 0.6
        assert cfl_harm.is_conflict((fitted, fitted._replace(gain=other, samples=30.0))) == expected


@pytest.mark.parametrize(("p", "least"), [(1e-6, cfl_harm.LEAST_GAIN), (1e-9, cfl_harm.SURE_GAIN)])
def test_where_little_is_left_to_gain_apart_there_is_no_conflict(p: float, least: float) -> None:
    sides = harm(p, gain=0.02, samples=30.0), harm(p, gain=0.01, samples=10.0)
    whole = (30 * 0.02 + 10 * 0.01) / 40 / cfl_harm.PART
    assert cfl_harm.gain_of(sides) == pytest.approx(whole)
    assert cfl_harm.is_conflict(sides, 0.99 * whole / least)
    assert not cfl_harm.is_conflict(sides, 1.01 * whole / least)
