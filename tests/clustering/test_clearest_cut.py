"""The clearest level of a dendrogram, clients that settle, and clients that stand alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import silhouette_score

from coterie.clustering.clearest_cut import (
    FAR,
    clearest_cut,
    mean_silhouette,
    nearest_others,
    numbered,
    settle,
    stand_alone,
)


def block_distances(sizes: list[int], inside: float, across: float) -> np.ndarray:
    truth = np.repeat(np.arange(len(sizes)), sizes)
    distances = np.where(truth[:, None] == truth, inside, across)
    np.fill_diagonal(distances, 0)
    return distances


@pytest.mark.parametrize(("inside", "across"), [(0.2, 0.45), (0.45, 0.7), (0.3, 0.9), (0.55, 0.62)])
def test_groups_are_found_whatever_the_height_between_them(inside: float, across: float) -> None:
    sizes = [6, 4, 3]
    distances = block_distances(sizes, inside, across)
    merges = linkage(squareform(distances), "average")
    assert np.bincount(clearest_cut(distances, merges)).tolist() == sizes


def test_a_client_moves_to_the_cluster_that_it_is_nearest_to() -> None:
    distances = block_distances([4, 4], 0.2, 0.8)
    assert settle(distances, np.array([0, 0, 0, 1, 1, 1, 1, 1])).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_client_alone_joins_only_where_it_is_no_farther_than_a_member() -> None:
    distances = block_distances([4, 1], 0.3, 0.3)
    labels = np.array([0, 0, 0, 0, 1])
    assert settle(distances, labels).tolist() == [0] * 5
    distances[4, :4] = distances[:4, 4] = 0.31
    assert settle(distances, labels).tolist() == [0, 0, 0, 0, 1]


def test_settled_clients_do_not_move_again() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        points = rng.normal(size=(12, 2))
        distances = np.linalg.norm(points[:, None] - points, axis=2)
        labels = settle(distances, numbered(rng.integers(0, 3, 12)))
        assert settle(distances, labels).tolist() == labels.tolist()
        assert labels.tolist() == numbered(labels).tolist()


def test_only_who_is_far_from_all_others_stands_alone() -> None:
    rng = np.random.default_rng(0)
    centroids = rng.normal(size=(8, 5, 3)).astype(np.float32)
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    assert stand_alone(labels, centroids).tolist() == labels.tolist()
    centroids[2] += 100
    centroids[7] += 100  # its cluster has too few members to say what is usual
    assert stand_alone(labels, centroids).tolist() == [0, 0, 1, 0, 0, 2, 2, 2]


def test_the_distance_to_others_is_the_mean_over_own_centroids_by_brute_force() -> None:
    rng = np.random.default_rng(1)
    centroids = rng.normal(size=(6, 4, 3)).astype(np.float32)
    centroids[0, 2:] = np.nan
    for client, found in enumerate(nearest_others(centroids)):
        others = np.delete(centroids, client, axis=0).reshape(-1, 3)
        others = others[~np.isnan(others).any(axis=1)]
        own = centroids[client][~np.isnan(centroids[client]).any(axis=1)]
        assert found == pytest.approx(np.mean([np.linalg.norm(others - c, axis=1).min() for c in own]), rel=1e-5)
    assert FAR > 1


def test_the_silhouette_is_scikit_learns() -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(size=(15, 2))
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    labels = numbered(rng.integers(0, 4, 15))
    expected = silhouette_score(distances, labels, metric="precomputed")
    assert mean_silhouette(distances, labels) == pytest.approx(expected)
    assert mean_silhouette(distances, np.zeros(15, dtype=np.int64)) == 0.0
