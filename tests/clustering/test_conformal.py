"""Conformal p-values of newcomers, worked by hand, and their level on random data."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.clustering.conformal import distances, left_out_distances, p_values, relative

LINE = np.array([[0.0], [2.0], [10.0], [13.0], [16.0]])
CLUSTERS = np.array([0, 0, 1, 1, 1])


def test_distances_to_the_means_by_hand() -> None:
    assert distances(np.array([[4.0]]), LINE, CLUSTERS).tolist() == [[3.0, 9.0]]


def test_a_client_is_left_out_of_its_own_cluster() -> None:
    found = left_out_distances(LINE, CLUSTERS)
    expected = [[2, 13], [2, 11], [9, 4.5], [12, 0], [15, 4.5]]
    assert found == pytest.approx(np.array(expected, dtype=float))


def test_left_out_distances_are_those_to_the_mean_of_the_others() -> None:
    rows = np.random.default_rng(0).standard_normal((7, 3))
    clusters = np.array([0, 0, 1, 1, 1, 0, 2])
    found = left_out_distances(rows, clusters)
    for i in range(6):
        others = [j for j in range(7) if clusters[j] == clusters[i] and j != i]
        assert found[i, clusters[i]] == pytest.approx(np.linalg.norm(rows[i] - rows[others].mean(0)))
    assert found[6, 2] == np.inf  # alone in its cluster


def test_relative_distances_by_hand() -> None:
    assert relative(np.array([[2.0, 8.0, 4.0]])) == pytest.approx(np.array([[0.5, 4.0, 2.0]]))
    assert relative(np.zeros((1, 2))) == pytest.approx(np.ones((1, 2)))


def test_p_values_count_those_that_fit_no_better() -> None:
    known = np.array([1.0, 2.0, 3.0])
    assert p_values(np.array([0.5, 2.0, 3.5]), known).tolist() == [1.0, 0.75, 0.25]


def test_a_newcomer_drawn_as_the_others_is_refused_at_the_level() -> None:
    """Over many draws: 2 clusters of 10, the newcomer of the first; at 5 % the right one is refused in 5 %."""
    rng, refused = np.random.default_rng(1), 0
    for _ in range(2000):
        clusters = np.repeat([0, 1], 10)
        rows = rng.standard_normal((20, 2)) + 2.0 * clusters[:, None]
        new = rng.standard_normal((1, 2))
        own = left_out_distances(rows, clusters)
        p = p_values(relative(distances(new, rows, clusters)), relative(own)[np.arange(20), clusters])
        refused += p[0, 0] <= 0.05
    assert 0.03 < refused / 2000 < 0.07  # standard error 0.005
