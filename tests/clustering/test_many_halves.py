"""The tests and cuts for very many clients are those of `half_vectors`, where both can be computed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coterie.clustering import half_vectors, many_halves
from coterie.clustering.copies import STRIP, copied, copies_among_many
from coterie.clustering.cosine import cosine_matrix
from coterie.clustering.half_vectors import unit_gram


def halves_of_groups(sizes: tuple[int, ...], noise: float, width: int = 60, seed: int = 0) -> np.ndarray:
    """Half-updates (2M, width) of groups with directions of their own, a direction in common, and noise."""
    generator = np.random.default_rng(seed)
    directions, shared = generator.standard_normal((len(sizes), width)), generator.standard_normal(width)
    mean = np.concatenate([np.tile(directions[g] + shared, (n, 1)) for g, n in enumerate(sizes)])
    return np.concatenate([mean + noise * generator.standard_normal(mean.shape) for _ in range(2)]).astype(np.float32)


def exact_sides(halves: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
    cosines = unit_gram(halves.astype(np.float64) @ halves.T.astype(np.float64))
    return half_vectors.find_sides(
        half_vectors.cross_products(cosines, weights), half_vectors.cosines_of_clients(cosines, weights)
    )


def p_values(halves: np.ndarray, draws: int = half_vectors.DRAWS) -> tuple[float, float]:
    tested = many_halves.tested_directions(halves)
    return many_halves.p_value(tested, draws), many_halves.group_p_value(tested, draws)


def gram_of(halves: np.ndarray) -> np.ndarray:
    return halves.astype(np.float64) @ halves.T.astype(np.float64)


CASES = [
    ((9, 6), 0.3, 60),
    ((30, 10), 1.0, 60),
    ((12, 5, 2, 1), 0.4, 60),
    ((8, 8, 8), 2.0, 300),
    ((20,), 1.0, 60),
    ((4, 1), 0.2, 8),
    ((6, 1), 3.0, 300),
]


@pytest.mark.parametrize(("sizes", "noise", "width"), CASES)
@pytest.mark.parametrize("seed", range(4))
def test_the_cut_is_the_one_from_products(sizes: tuple[int, ...], noise: float, width: int, seed: int) -> None:
    halves = halves_of_groups(sizes, noise, width, seed)
    weights = np.random.default_rng(seed).uniform(1, 9, len(halves) // 2)
    expected, found = exact_sides(halves, weights), many_halves.find_sides(halves, weights)
    assert (found is None) == (expected is None)
    assert expected is None or (found == expected).all()


def test_both_ways_of_cutting_are_met_in_the_cases() -> None:
    ways = set()
    for sizes, noise, width in CASES:
        halves, weights = halves_of_groups(sizes, noise, width), np.ones(sum(sizes))
        cosines = unit_gram(gram_of(halves))
        above = half_vectors._split_above_noise(half_vectors.cross_products(cosines, weights))
        ways.add((above is None, exact_sides(halves, weights) is None))
    assert ways == {(False, False), (True, False), (True, True)}


def test_the_numbers_are_those_from_products() -> None:
    halves = halves_of_groups((9, 6), 0.7)
    second = np.arange(15) >= 9
    gram = gram_of(halves)
    assert many_halves.noise_of(halves) == pytest.approx(half_vectors.noise_of(gram), rel=1e-5)
    alpha = half_vectors.alpha_cross_max(gram, second)
    assert many_halves.alpha_cross_max(halves, second) == pytest.approx(alpha, abs=1e-6)


def test_scores_of_matchings_are_those_from_products() -> None:
    halves = halves_of_groups((5, 4), 0.7)
    rows = many_halves._without_common(many_halves.unit_rows(halves))
    cosines = half_vectors._without_common(gram_of(halves))
    np.testing.assert_allclose(rows @ rows.T, cosines, atol=1e-5)
    orders = half_vectors._orders(9, 20, 3)
    for order, score in zip(orders, half_vectors._agreement(cosines, orders), strict=True):
        first, second = rows[order[:9]], rows[order[9:]]
        assert many_halves._likeness(first, second) == pytest.approx(cosines[order[:9], order[9:]].sum(), abs=1e-4)
        assert many_halves._agreement(first, second) == pytest.approx(score, abs=1e-3)


def test_p_values_are_uniform_for_clients_of_one_distribution_and_small_for_several() -> None:
    generator = np.random.default_rng(1)
    values = []
    for _ in range(200):
        halves = (2 + generator.standard_normal((120, 200))).astype(np.float32)  # more directions than are tested
        values.append(p_values(halves, draws=99))
    for each in np.array(values).T:
        distance = np.abs(np.sort(each) - (np.arange(200) + 0.5) / 200).max()
        assert distance < 1.63 / math.sqrt(200)  # Kolmogorov and Smirnov, 1 %
    assert max(p_values(halves_of_groups((40, 30), 1.0))) <= 0.001


def test_less_than_two_clients_differ_in_nothing() -> None:
    assert p_values(np.ones((2, 5), dtype=np.float32)) == (1.0, 1.0)


def test_with_more_clients_than_landmarks_groups_are_still_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_halves, "LANDMARKS", 40)
    monkeypatch.setattr(many_halves, "AT_ONCE", 64)
    halves = halves_of_groups((150, 90), 1.0)
    second = many_halves.find_sides(halves, np.ones(240))
    assert second is not None
    assert (second == (np.arange(240) >= 150)).all()
    exact = half_vectors.alpha_cross_max(gram_of(halves), second)
    assert exact - 0.2 < many_halves.alpha_cross_max(halves, second) <= exact + 1e-6
    assert many_halves.find_sides(halves_of_groups((240,), 1.0), np.ones(240)) is None


def test_zero_updates_are_no_reason_to_fail() -> None:
    halves = halves_of_groups((9, 6), 0.3)
    halves[[2, 17]] = 0
    assert many_halves.find_sides(halves, np.ones(15)) is not None
    assert all(0 < p <= 1 for p in p_values(np.zeros((20, 10), dtype=np.float32)))


@pytest.mark.parametrize("nearly_alike", [False, True])
def test_copies_are_those_found_by_all_products(nearly_alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.clustering.copies.MANY", 300)
    generator = np.random.default_rng(4)
    rows = generator.standard_normal((STRIP + 150, 200)).astype(np.float32)
    if nearly_alike:  # all look like copies in a few directions
        rows = np.ones(200, dtype=np.float32) + 0.003 * rows
    rows[[70, 600]] = 2.5 * rows[[3, 69]]
    rows[601] = rows[70] + 1e-6
    rows[602] = -rows[3]
    rows[[10, 11]] = 0
    expected = copied(cosine_matrix(rows), 200)
    assert expected.sum() == 3
    assert (copies_among_many(rows) == expected).all()
    assert not copies_among_many(rows[:, :50]).any()
