"""Theorem 1 holds on every random instance; gaps, γ and the criterion equal numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import (
    H_ij,
    alpha_cross_max,
    alpha_intra_min,
    bipartition,
    cosine_matrix,
    cross_bound,
    gamma,
    gamma_criterion,
    separation_gap,
    separation_guaranteed,
)


def stationary_gradients(rng: np.random.Generator, distributions: int, d: int) -> np.ndarray:
    """True gradients (K, d) of unlike lengths, some positive combination of which is zero, as at a stationary point."""
    shares = rng.dirichlet(np.ones(distributions)) + 0.05
    gradients = rng.normal(size=(distributions, d)) * rng.uniform(0.1, 3, size=(distributions, 1))
    gradients[-1] = -(shares[:-1] @ gradients[:-1]) / shares[-1]
    return gradients


def noisy_clients(rng: np.random.Generator, true: np.ndarray, noise: float, worst: bool) -> np.ndarray:
    """Gradients whose noise is at most `noise` times the true ones; `worst` turns them as far as that allows."""
    direction = rng.normal(size=true.shape)
    length = np.linalg.norm(true, axis=1, keepdims=True)
    if worst and true.shape[1] > 1:
        # The angle is largest, arcsin γ, when the noise is orthogonal to the sum.
        unit = true / length
        across = direction - (direction * unit).sum(axis=1, keepdims=True) * unit
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        return np.asarray(true + noise * length * (across * np.sqrt(1 - noise**2) - unit * noise))
    amount = noise * rng.uniform(0, 1, size=(len(true), 1))
    return np.asarray(true + direction / np.linalg.norm(direction, axis=1, keepdims=True) * length * amount)


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    distributions=st.integers(2, 6),
    d=st.sampled_from([2, 3, 5, 50]),
    noise=st.floats(0, 0.99),
    worst=st.booleans(),
)
def test_no_instance_violates_theorem_1(seed: int, distributions: int, d: int, noise: float, worst: bool) -> None:
    rng = np.random.default_rng(seed)
    centres = stationary_gradients(rng, distributions, d)
    groups = np.concatenate([np.arange(distributions), rng.integers(0, distributions, size=6)])
    true = centres[groups]
    seen = noisy_clients(rng, true, noise, worst)
    noises = gamma(seen, true)
    assert noises.max() < 1
    similarity = cosine_matrix(seen)
    same = groups[:, None] == groups
    inside = H_ij(noises[:, None], noises[None, :])
    assert (similarity >= inside - 1e-9)[same].all()
    assert alpha_intra_min(similarity, groups) >= inside[same].min() - 1e-9
    # The theorem's split is one of whole groups: the best one without noise.
    best = bipartition(cosine_matrix(centres))
    side = np.isin(groups, best.second)
    across = side[:, None] != side[None, :]
    bounds = cross_bound(noises[:, None], noises[None, :], distributions)
    assert (similarity <= bounds + 1e-9)[across].all()
    assert bipartition(similarity).alpha_cross_max <= bounds[across].max() + 1e-9


def test_bounds_are_attained_for_two_distributions_in_the_plane() -> None:
    # γ = 0.6 and 0.28 turn by arcsin γ: cosines 0.8 and 0.96, so H = 0.8 · 0.96 − 0.6 · 0.28 = 0.6.
    assert H_ij(0.6, 0.28) == pytest.approx(0.6)
    assert cross_bound(0.6, 0.28, 2) == pytest.approx(-0.6)
    # Noise orthogonal to the sum turns furthest: clients 0 and 1 apart, 0 and 2 towards each other.
    true = np.array([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    seen = np.array([[0.64, 0.48], [0.9216, -0.2688], [-0.9216, 0.2688]])
    np.testing.assert_allclose(gamma(seen, true), [0.6, 0.28, 0.28])
    similarity = cosine_matrix(seen)
    assert similarity[0, 1] == pytest.approx(0.6)
    assert similarity[0, 2] == pytest.approx(-0.6)


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_cross_bound_for_two_distributions_is_minus_h(first: float, second: float) -> None:
    assert cross_bound(first, second, 2) == -H_ij(first, second)
    assert -1 <= H_ij(first, second) <= 1


@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True), st.integers(3, 30))
def test_cross_bound_is_the_cosine_of_what_noise_leaves_of_the_angle(first: float, second: float, k: int) -> None:
    left = np.pi / (k - 1) - np.arcsin(first) - np.arcsin(second)
    expected = np.cos(left) if left >= 0 else 1.0
    assert cross_bound(first, second, k) == pytest.approx(expected, abs=1e-6)


def test_three_distributions_by_hand() -> None:
    # K = 3: cos(π/2) = 0 and sin(π/2) = 1, so the bound is sqrt(1 − H²) while H >= 0.
    assert cross_bound(0.0, 0.0, 3) == pytest.approx(0.0, abs=1e-12)
    assert cross_bound(0.6, 0.28, 3) == pytest.approx(0.8)
    assert cross_bound(0.9, 0.9, 3) == 1.0


def test_noise_of_one_or_more_bounds_nothing() -> None:
    assert H_ij(1.0, 0.0) == -1
    assert H_ij(0.2, 7.0) == -1
    assert H_ij(np.inf, np.inf) == -1
    assert cross_bound(2.0, 0.0, 2) == 1
    assert cross_bound(2.0, 0.0, 5) == 1
    with pytest.raises(ValueError, match="negative"):
        H_ij(-0.1, 0.0)
    with pytest.raises(ValueError, match="at least 2"):
        cross_bound(0.1, 0.1, 1)


@pytest.mark.parametrize("distributions", [2, 3, 4, 10])
def test_guarantee_ends_where_twice_the_noise_angle_is_half_of_what_separates(distributions: int) -> None:
    # H > bound  ⇔  2 arcsin γ < π/(K−1) − 2 arcsin γ.
    limit = np.sin(np.pi / (4 * (distributions - 1)))
    assert separation_guaranteed([0.0, limit - 1e-6], distributions).all()
    assert not separation_guaranteed([limit + 1e-6, 0.99, 3.0], distributions).any()


def test_gamma_by_hand() -> None:
    np.testing.assert_allclose(gamma([[3.0, 4.0], [0.0, 0.0]], [3.0, 0.0]), [4 / 3, 1.0])
    np.testing.assert_array_equal(gamma([[1.0, 0.0], [0.0, 0.0]], np.zeros((2, 2))), [np.inf, 0.0])
    assert float(gamma([1.0, 1.0], [1.0, 0.0])) == 1.0


def test_gap_by_hand() -> None:
    similarity = np.array([[1, 0.7, 0.2, -0.4], [0.7, 1, 0.1, -0.3], [0.2, 0.1, 1, 0.6], [-0.4, -0.3, 0.6, 1]])
    assert alpha_intra_min(similarity, [0, 0, 1, 1]) == 0.6
    assert alpha_cross_max(similarity, [0, 0, 1, 1]) == 0.2
    assert separation_gap(similarity, [0, 0, 1, 1]) == pytest.approx(0.4)
    assert separation_gap(similarity, ["a", "b", "a", "b"]) == pytest.approx(-0.3 - 0.2)
    assert alpha_intra_min(similarity, [0, 1, 2, 3]) == 1
    assert alpha_cross_max(similarity, [5, 5, 5, 5]) == -1
    with pytest.raises(ValueError, match="groups"):
        separation_gap(similarity, [0, 1])


def test_gap_uses_the_best_split_not_all_pairs_of_groups() -> None:
    # Groups 0 and 1 lie close together, 2 opposite: the split {0, 1} | {2} is correct and the gap says so.
    similarity = cosine_matrix(np.array([[1.0, 0.0], [1.0, 0.001], [1.0, 0.3], [1.0, 0.301], [-1.0, 0.0]]))
    groups = [0, 0, 1, 1, 2]
    assert separation_gap(similarity, groups) > 1.8
    assert alpha_intra_min(similarity, groups) - alpha_cross_max(similarity, groups) < 0.1


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**9), distributions=st.integers(2, 5), noise=st.floats(0, 1.5))
def test_positive_gap_proves_the_split_correct(seed: int, distributions: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    groups = np.arange(3 * distributions) % distributions
    true = rng.normal(size=(distributions, 20))[groups]
    similarity = cosine_matrix(true + noise * rng.normal(size=true.shape))
    split = bipartition(similarity)
    correct = not set(groups[split.first]) & set(groups[split.second])
    assert correct or separation_gap(similarity, groups) <= 0


def test_figure_3_separates_beyond_what_the_theorem_guarantees() -> None:
    # d = 100, M = 3K, K = 12, noise as long as 1.1 times the gradient: nothing is guaranteed, yet it works.
    correct = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        groups = np.arange(36) % 12
        true = rng.normal(size=(12, 100))
        true -= true.mean(axis=0)
        noise = rng.normal(size=(36, 100))
        noise *= (
            1.1 * np.linalg.norm(true[groups], axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
        )
        split = bipartition(cosine_matrix(true[groups] + noise))
        correct += not set(groups[split.first]) & set(groups[split.second])
    assert correct >= 19
    assert not separation_guaranteed(1.1, 12)


def test_criterion() -> None:
    assert gamma_criterion(-1.0) == 1.0
    assert gamma_criterion(1.0) == 0.0
    assert gamma_criterion(0.5) == 0.5
    assert gamma_criterion(1.0 + 1e-12) == 0.0


@given(st.floats(0, 0.99))
def test_criterion_is_the_noise_at_which_the_bound_inside_meets_the_similarity_across(noise: float) -> None:
    # Eq. 35: H(γ, γ) = 1 − 2γ².
    assert gamma_criterion(float(H_ij(noise, noise))) == pytest.approx(noise, abs=1e-7)
