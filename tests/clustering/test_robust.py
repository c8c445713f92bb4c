"""Robust means against their papers' definitions, by brute force on small inputs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import robust
from coterie.methods.robust_rules import KAPPA, RobustRule


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
    """The order of the updates by their Krum scores."""
    n = len(x)
    apart = [[float((x[i] - x[j]).double().square().sum()) for j in range(n) if j != i] for i in range(n)]
    scores = [sum(sorted(row)[: n - f - 2]) for row in apart]
    return sorted(range(n), key=lambda i: scores[i])


@settings(max_examples=30, deadline=None)
@given(st.integers(5, 12), st.integers(0, 4), st.integers(0, 10**6))
def test_krum_is_the_update_with_the_nearest_neighbours_and_multi_krum_the_mean_of_n_minus_f(n, f, seed):
    x = rows(n, 6, seed)
    usable = min(f, (n - 3) // 2)
    order = brute_krum(x, usable)
    torch.testing.assert_close(robust.krum(x, f), x[order[0]].double())
    torch.testing.assert_close(robust.multi_krum(x, f), x[sorted(order[: n - usable])].double().mean(0))


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 9), st.integers(0, 10**6))
def test_no_step_from_the_geometric_median_lowers_the_sum_of_distances(n, seed):
    x = rows(n, 4, seed, torch.float64)

    def cost(point):
        return float((x - point).norm(dim=1).sum())

    found = robust.geometric_median(x)
    for step in rows(40, 4, seed + 2, torch.float64):
        assert cost(found) <= cost(found + 0.01 * step) + 1e-9


def test_the_geometric_median_of_points_on_a_line_is_their_median():
    x = torch.tensor([[0.0], [1.0], [2.0], [3.0], [1000.0]])
    assert float(robust.geometric_median(x)) == pytest.approx(2.0, abs=1e-3)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.floats(0.1, 5), st.integers(0, 10**6))
def test_centred_clipping_is_one_step_of_clipped_differences(n, radius, seed):
    x = rows(n, 4, seed, torch.float64)
    for start in (None, rows(1, 4, seed + 1, torch.float64)[0]):
        centre = robust.coordinate_median(x) if start is None else start
        apart = x - centre
        expected = centre + (apart * (radius / apart.norm(dim=1, keepdim=True)).clamp_max(1)).mean(0)
        torch.testing.assert_close(robust.centred_clip(x, radius, start), expected)


def test_one_client_moves_centred_clipping_by_at_most_its_share_of_the_radius():
    x = rows(10, 30)
    far = x.clone()
    far[3] = 1e9
    start = torch.zeros(30)
    moved = (robust.centred_clip(far, 2.0, start) - robust.centred_clip(x, 2.0, start)).norm()
    assert float(moved) <= 2 * 2.0 / 10


def test_buckets_are_means_of_updates_in_the_order_given():
    x = torch.arange(5.0)[:, None]
    found = robust.bucketing(x, 2, np.array([4, 0, 3, 1, 2]))
    assert found.flatten().tolist() == [2.0, 2.0, 2.0]
    assert robust.bucketing(x, 2, np.arange(5)).flatten().tolist() == [0.5, 2.5, 4.0]


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 9), st.integers(0, 10**6))
def test_mixing_takes_the_mean_of_the_n_minus_f_nearest(n, seed):
    x, f = rows(n, 3, seed, torch.float64), (n - 1) // 2
    expected = [x[np.argsort([(x[i] - y).norm() for y in x], kind="stable")[: n - f]].mean(0) for i in range(n)]
    torch.testing.assert_close(robust.nearest_neighbour_mixing(x, f), torch.stack(expected))


def test_equal_updates_are_their_own_centre():
    x = rows(1, 50).repeat(6, 1)
    rules = ["geometric-median", "multi-krum(1)", "krum(1)", "median", "centred-clip(1)", "nnm+trimmed-mean(1)"]
    for rule in [*rules, "bucketing(2)+median"]:
        np.testing.assert_allclose(RobustRule.parse(rule).center(x, np.arange(6)), x[0].double(), rtol=1e-12)


def hostile_rows(honest, f, seed):
    """The honest updates with f others: far away, together at the edge, or copies of an extreme honest one."""
    generator = np.random.default_rng(seed)
    direction = torch.from_numpy(generator.standard_normal(honest.shape[1]))
    length = float(generator.choice([0.5, 1, 2, 4, 100, 1e6]))
    kinds = [honest.mean(0) + length * direction, honest[int((honest @ direction).argmax())]]
    return torch.cat([honest, kinds[seed % 2].repeat(f, 1)])


RULES = [
    "nnm({f})+median", "trimmed-mean({f})", "krum({f})", "multi-krum({f})", "nnm({f})+geometric-median",
    "nnm+trimmed-mean({f})", "nnm+krum({f})",
]  # fmt: skip


def farthest(found, x, f):
    """The largest ‖found − m‖² over the spread, of all subsets of n − f updates with mean m."""
    subsets = [x[list(subset)] for subset in combinations(range(len(x)), len(x) - f)]
    spreads = [float((own - own.mean(0)).square().sum(1).mean()) for own in subsets]
    apart = [float((found - own.mean(0)).square().sum()) for own in subsets]
    return max(a / max(s, 1e-12) for a, s in zip(apart, spreads, strict=True))


@pytest.mark.parametrize("text", RULES)
@settings(max_examples=40, deadline=None)
@given(f=st.integers(1, 3), more=st.integers(3, 5), seed=st.integers(0, 10**6))
def test_no_rule_is_farther_from_any_n_minus_f_updates_than_its_published_bound(text, f, more, seed):
    x = hostile_rows(rows(f + more, 3, seed, torch.float64), f, seed)
    rule = RobustRule.parse(text.format(f=f))
    assert farthest(rule.center(x, np.arange(len(x))), x, f) <= rule.kappa(len(x)) + 1e-9


@pytest.mark.parametrize("name", ["median", "geometric-median"])
@settings(max_examples=40, deadline=None)
@given(f=st.integers(1, 3), more=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_medians_keep_to_their_bound_for_every_f(name, f, more, seed):
    x = hostile_rows(rows(f + more, 3, seed, torch.float64), f, seed)
    found = RobustRule.parse(name).center(x, np.arange(len(x)))
    assert farthest(found, x, f) <= KAPPA[name](len(x), f) + 1e-9


@pytest.mark.parametrize("text", [*RULES, "median", "geometric-median"])
@pytest.mark.parametrize(("n", "f"), [(7, 1), (9, 2), (11, 4)])
def test_no_rule_is_nearer_than_f_clients_who_differ_allow(text, n, f):
    """f updates at one and the others at zero: zero is right for the others, and f/(n − 2f) off if the f are honest."""
    x = torch.cat([torch.ones(f, 1), torch.zeros(n - f, 1)]).double()
    found = RobustRule.parse(text.format(f=f)).center(x, np.arange(n))
    assert float(found) == pytest.approx(0, abs=1e-5)
    assert farthest(found, x, f) == pytest.approx(f / (n - 2 * f), rel=1e-3)


@pytest.mark.parametrize("n", [5, 8, 9])
def test_the_medians_bound_is_reached(n):
    """b at one side, the others at zero, where the hostile are: the median is zero, and S has b of its n − f apart."""
    f, b = 1, (n - 1) // 2
    x = torch.cat([torch.full((b,), -1.0), torch.zeros(n - b)])[:, None].double()
    found = robust.coordinate_median(x)
    assert farthest(found, x, f) == pytest.approx(KAPPA["median"](n, f))


def test_the_mean_keeps_to_no_bound():
    x = torch.cat([rows(9, 3, 1, torch.float64), torch.full((1, 3), 1e6, dtype=torch.float64)])
    assert farthest(RobustRule.parse("mean").center(x, np.arange(10)), x, 1) > 1e3


def test_published_bounds_by_hand():
    assert RobustRule.parse("trimmed-mean(2)").kappa(20) == pytest.approx(2 / 16)
    assert RobustRule.parse("nnm+trimmed-mean(2)").kappa(20) == pytest.approx(16 / 18 * (1 + 2 / 16))
    assert RobustRule.parse("krum(10%)").kappa(20) == pytest.approx(6 * 18 / 15)
    assert RobustRule.parse("krum(9)").kappa(20) is None  # it stands 2f + 2 < n
    assert RobustRule.parse("trimmed-mean(10)").kappa(20) is None  # half of them
    assert RobustRule.parse("centred-clip(1)").kappa(20) is None


@pytest.mark.parametrize("text", [rule.format(f=2) for rule in RULES] + ["bucketing(2)+trimmed-mean(2)"])
def test_two_of_ten_that_send_anything_move_no_rule_out_of_the_honest_range(text):
    honest = rows(8, 30) * 0.1 + 1
    x = torch.cat([honest, torch.full((1, 30), 1e6), torch.full((1, 30), -1e7)])
    found = RobustRule.parse(text).center(x, np.arange(10))
    low, high = honest.double().min(0).values - 0.1, honest.double().max(0).values + 0.1
    assert bool(((found >= low) & (found <= high)).all())


def test_of_three_updates_each_is_scored_by_its_nearest():
    assert robust.krum_scores(torch.tensor([[0.0], [1.0], [3.0]]), 0).tolist() == [1.0, 1.0, 4.0]
