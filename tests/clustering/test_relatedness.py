"""Distances of centroid sets, mixing rows that sum to one, and Ward clusters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage

import coterie.clustering.relatedness as relatedness_module
from coterie.clustering import (
    adjusted_rand_index,
    matching_distances,
    min_pair_distances,
    mixing_matrix,
    related,
    ward_clusters,
)
from coterie.clustering.relatedness import ward_merges


def islands(seed: int, clients: int, shared: int) -> tuple[np.ndarray, np.ndarray]:
    """Centroids (M, 5, 2) of five groups on ten islands: two to a group, and `shared` more of the next group."""
    rng = np.random.default_rng(seed)
    angles = np.arange(10) * 2 * np.pi / 10
    centres = 12 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    groups = np.arange(clients) % 5
    width = 2 + shared
    which = (2 * groups[:, None] + np.concatenate([np.arange(width), rng.integers(0, width, 5 - width)])) % 10
    return centres[which] + 0.5 * rng.normal(size=(clients, 5, 2)), groups


def brute_min(points: np.ndarray) -> np.ndarray:
    gaps = np.linalg.norm(points[:, None, :, None] - points[None, :, None, :], axis=-1)
    smallest = gaps.min(axis=(2, 3))
    np.fill_diagonal(smallest, 0)
    return np.asarray(smallest)


def brute_match(first: np.ndarray, second: np.ndarray) -> float:
    """Mean distance of the best match by trying all; the smaller set goes first."""
    if len(first) > len(second):
        first, second = second, first
    choices = itertools.permutations(range(len(second)), len(first))
    return min(float(np.linalg.norm(first - second[list(chosen)], axis=1).mean()) for chosen in choices)


@pytest.mark.parametrize("at_once", [1, 100, 8_000_000])
def test_min_pair_distances_equal_brute_force_however_they_are_cut(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relatedness_module, "_AT_ONCE", at_once)
    points = np.random.default_rng(0).normal(size=(13, 3, 4))
    distances = min_pair_distances(points)
    np.testing.assert_allclose(distances, brute_min(points), rtol=1e-12)
    assert np.array_equal(distances, distances.T)
    assert (np.diag(distances) == 0).all()


def test_min_pair_distance_by_hand() -> None:
    points = np.array([[[0, 0], [10, 0]], [[13, 4], [0, 30]]], dtype=np.float32)
    assert min_pair_distances(points)[0, 1] == 5


def test_distance_does_not_depend_on_the_order_of_centroids() -> None:
    points = np.random.default_rng(0).normal(size=(4, 3, 2))
    np.testing.assert_allclose(min_pair_distances(points), min_pair_distances(points[:, ::-1]))
    np.testing.assert_allclose(matching_distances(points), matching_distances(points[:, ::-1]))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), counts=st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_both_distances_equal_brute_force_with_missing_centroids(seed: int, counts: list[int]) -> None:
    points = np.random.default_rng(seed).normal(size=(len(counts), 4, 2))
    for client, count in enumerate(counts):
        points[client, count:] = np.nan
    nearest, matched = min_pair_distances(points), matching_distances(points)
    for i, j in itertools.combinations(range(len(counts)), 2):
        first, second = points[i, : counts[i]], points[j, : counts[j]]
        assert matched[i, j] == pytest.approx(brute_match(first, second))
        assert matched[j, i] == matched[i, j]
        gaps = np.linalg.norm(first[:, None] - second[None], axis=-1)
        assert nearest[i, j] == pytest.approx(gaps.min())
        assert nearest[i, j] <= matched[i, j] + 1e-12


def test_one_shared_centroid_is_enough_for_the_nearest_pair_and_not_for_the_match() -> None:
    points = np.array([[[0.0, 0], [5, 0]], [[0, 0], [0, 5]]])
    assert min_pair_distances(points)[0, 1] == 0
    assert matching_distances(points)[0, 1] == pytest.approx(np.sqrt(50) / 2)


def test_client_without_centroids_is_named() -> None:
    points = np.zeros((3, 2, 2))
    points[1] = np.nan
    for distance in (min_pair_distances, matching_distances):
        with pytest.raises(ValueError, match="client 1"):
            distance(points)
    with pytest.raises(ValueError, match="shape"):
        min_pair_distances(np.zeros((3, 2)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("shared", "clients"), [(0, 15), (1, 60)])
def test_rows_of_distances_find_groups_that_share_nothing_and_groups_in_a_ring(
    seed: int, shared: int, clients: int
) -> None:
    points, groups = islands(seed, clients, shared)
    assert adjusted_rand_index(ward_clusters(min_pair_distances(points), 5), groups) == 1


def test_ward_sees_the_rows_as_they_are() -> None:
    near = np.zeros((7, 7), dtype=bool)
    near[:4, :4] = near[4:6, 4:6] = near[6, 6] = True
    near[3, 4] = near[4, 3] = True
    np.testing.assert_allclose(ward_merges(near)[:, 2], linkage(near.astype(float), "ward")[:, 2])
    some = min_pair_distances(islands(0, 12, 0)[0])[:5]  # five clients by their distances to all
    np.testing.assert_allclose(ward_merges(some)[:, 2], linkage(some, "ward")[:, 2])


def test_related_is_strict_and_always_holds_for_oneself() -> None:
    distances = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]])
    assert np.array_equal(related(distances, 2.0), [[True, True, False], [True, True, False], [False, False, True]])
    assert np.array_equal(related(distances, 0.0), np.eye(3, dtype=bool))


def test_mixing_by_hand() -> None:
    kin = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=bool)
    expected = np.array([[0.25, 0.75, 0], [0.25, 0.75, 0], [0, 1, 0]])
    np.testing.assert_allclose(mixing_matrix(kin, [10, 30, 60], [0, 1]), expected)
    # Nobody related to client 2 took part: it keeps its model.
    np.testing.assert_allclose(mixing_matrix(kin, [10, 30, 60], [0]), [[1, 0, 0], [1, 0, 0], [0, 0, 1]])
    assert np.array_equal(mixing_matrix(kin, [10, 30, 60], []), np.eye(3))


@given(seed=st.integers(0, 10**9), clients=st.integers(1, 12), share=st.floats(0, 1))
def test_mixing_rows_sum_to_one_for_any_participation(seed: int, clients: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    kin = rng.random((clients, clients)) < 0.4
    kin |= kin.T | np.eye(clients, dtype=bool)
    took_part = np.flatnonzero(rng.random(clients) < share)
    weights = mixing_matrix(kin, rng.integers(1, 1000, clients), took_part)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-12)
    strangers = ~kin | ~np.isin(np.arange(clients), took_part)
    assert not (weights[strangers & ~np.eye(clients, dtype=bool)]).any()


def test_members_of_one_block_get_bitwise_equal_rows() -> None:
    groups = np.array([0, 1, 0, 1, 1, 0])
    weights = mixing_matrix(groups[:, None] == groups, [3, 7, 11, 13, 17, 19], [0, 1, 2, 4])
    for group in (0, 1):
        rows = weights[groups == group]
        assert (rows == rows[0]).all()


@pytest.mark.parametrize("sizes", [[4, 4], [10, 3, 2], [40, 20, 8, 3], [6, 6, 6, 6], [2] * 7])
def test_blocks_become_clusters_numbered_by_first_member(sizes: list[int]) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    blocks = groups[:, None] == groups
    assert np.array_equal(ward_clusters(blocks, len(sizes)), groups)
    # By rows of zeros and ones small blocks are near to each other: the largest jump finds blocks of one size.
    assert np.array_equal(ward_clusters(blocks), groups) == (len(set(sizes)) == 1)


def test_number_of_clusters_is_kept_when_given() -> None:
    distances = min_pair_distances(np.random.default_rng(0).normal(size=(12, 2, 2)))
    for clusters in range(1, 13):
        assert len(set(ward_clusters(distances, clusters).tolist())) == clusters
    with pytest.raises(ValueError, match="13"):
        ward_clusters(distances, 13)


def test_ward_at_the_extremes() -> None:
    assert ward_clusters(np.ones((5, 5), dtype=bool)).tolist() == [0] * 5
    assert ward_clusters(np.eye(5, dtype=bool)).tolist() == [0, 1, 2, 3, 4]
    assert ward_clusters(np.ones((1, 1), dtype=bool)).tolist() == [0]
    assert ward_clusters(np.eye(2, dtype=bool)).tolist() == [0, 1]


def test_distances_serve_as_well_as_relatedness() -> None:
    points, groups = islands(3, 40, shared=0)
    assert adjusted_rand_index(ward_clusters(min_pair_distances(points)), groups) == 1
