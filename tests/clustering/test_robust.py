"""Robust means against their definitions, and against vectors that no honest client would send."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import robust


def rows(n, d, seed=0, dtype=torch.float32):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
def test_the_median_is_numpys(n):
    x = rows(n, 5000)  # more than one block of columns
    np.testing.assert_allclose(robust.coordinate_median(x), np.median(x.double().numpy(), axis=0), rtol=1e-12)


@pytest.mark.parametrize(("n", "cut"), [(10, 2), (10, 0), (5, 2), (4, 7), (1, 1)])
def test_the_trimmed_mean_drops_as_many_at_both_ends(n, cut):
    x = rows(n, 7)
    kept = min(cut, (n - 1) // 2)
    expected = np.sort(x.double().numpy(), axis=0)[kept : n - kept].mean(axis=0)
    np.testing.assert_allclose(robust.trimmed_mean(x, cut), expected, rtol=1e-12)


def brute_krum(x, f):
    n = len(x)
    apart = [[float((x[i] - x[j]).double().square().sum()) for j in range(n) if j != i] for i in range(n)]
    scores = [sum(sorted(row)[: n - f - 2]) for row in apart]
    return set(sorted(range(n), key=lambda i: scores[i])[: n - f])


@settings(max_examples=30, deadline=None)
@given(st.integers(5, 12), st.integers(0, 4), st.integers(0, 10**6))
def test_krum_keeps_those_with_the_nearest_neighbours(n, f, seed):
    x = rows(n, 6, seed)
    usable = min(f, (n - 3) // 2)
    expected = brute_krum(x, usable) if usable else set(range(n))
    assert set(np.flatnonzero(robust.krum_kept(x, f))) == expected


def test_multi_krum_leaves_out_those_that_are_far_away_and_weighs_the_rest():
    x = rows(10, 20)
    x[3] += 100
    x[7] -= 50
    weights = np.arange(1.0, 11.0)
    kept = [i for i in range(10) if i not in (3, 7)]
    expected = np.average(x[kept].double().numpy(), axis=0, weights=weights[kept])
    np.testing.assert_allclose(robust.multi_krum(x, 2, weights), expected, rtol=1e-10)


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 9), st.integers(0, 10**6))
def test_no_step_from_the_geometric_median_lowers_the_sum_of_distances(n, seed):
    x = rows(n, 4, seed, torch.float64)
    weights = rows(n, 1, seed + 1, torch.float64).abs().flatten() + 0.1

    def cost(point):
        return float((weights * (x - point).norm(dim=1)).sum())

    found = robust.geometric_median(x, weights.tolist())
    for step in rows(40, 4, seed + 2, torch.float64):
        assert cost(found) <= cost(found + 0.01 * step) + 1e-9


def test_the_geometric_median_of_points_on_a_line_is_their_median():
    x = torch.tensor([[0.0], [1.0], [2.0], [3.0], [1000.0]])
    assert float(robust.geometric_median(x)) == pytest.approx(2.0, abs=1e-3)


def test_equal_updates_are_their_own_centre():
    x = rows(1, 50).repeat(6, 1)
    for found in (robust.geometric_median(x), robust.multi_krum(x, 1), robust.coordinate_median(x)):
        np.testing.assert_allclose(found, x[0].double(), rtol=1e-12)


@pytest.mark.parametrize("rule", ["median", "trimmed", "krum", "geometric"])
def test_two_of_ten_that_send_anything_move_no_rule_out_of_the_honest_range(rule):
    honest = rows(8, 30) * 0.1 + 1
    x = torch.cat([honest, torch.full((1, 30), 1e6), torch.full((1, 30), -1e7)])
    found = {
        "median": lambda: robust.coordinate_median(x),
        "trimmed": lambda: robust.trimmed_mean(x, 2),
        "krum": lambda: robust.multi_krum(x, 2),
        "geometric": lambda: robust.geometric_median(x),
    }[rule]()
    low, high = honest.double().min(0).values - 0.1, honest.double().max(0).values + 0.1
    assert bool(((found >= low) & (found <= high)).all())
