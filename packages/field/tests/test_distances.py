"""Agglomerative clustering against merges worked by hand, and principal angles of planes built with known ones."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import subspace_angles

from coterie_field.agglomerative import agglomerate, vector_distances
from coterie_field.principal_angles import nearest_subspaces

LINE = np.array([[0.0], [1.0], [3.0], [6.0]])
"""Four points on a line: single linkage merges at 1, 2, 3; complete at 1, 3, 6; average at 1, 2.5, 4⅔."""


@pytest.mark.parametrize(
    ("linkage", "threshold", "labels"),
    [
        ("single", 0.9, [0, 1, 2, 3]),
        ("single", 1.0, [0, 0, 1, 2]),
        ("single", 2.0, [0, 0, 0, 1]),
        ("single", 3.0, [0, 0, 0, 0]),
        ("complete", 2.9, [0, 0, 1, 2]),
        ("complete", 3.0, [0, 0, 0, 1]),
        ("complete", 5.9, [0, 0, 0, 1]),
        ("average", 2.4, [0, 0, 1, 2]),
        ("average", 2.6, [0, 0, 0, 1]),
        ("average", 4.6, [0, 0, 0, 1]),
        ("average", 4.7, [0, 0, 0, 0]),
        # Ward: two points at 1, then {0, 1} and 3 at sqrt(2·2·1/3)·2.5 = 2.89, the last at sqrt(2·3·1/4)·4.67 = 5.72.
        ("ward", 2.8, [0, 0, 1, 2]),
        ("ward", 2.9, [0, 0, 0, 1]),
        ("ward", 5.8, [0, 0, 0, 0]),
    ],
)
def test_merges_up_to_the_threshold(linkage, threshold, labels):
    distances = vector_distances(LINE, "l2")
    assert agglomerate(distances, linkage, threshold=threshold).tolist() == labels
    assert agglomerate(distances, linkage, clusters=max(labels) + 1).tolist() == labels


def test_ties_still_give_the_number_of_clusters_asked_for():
    equal = 1.0 - np.eye(5)
    assert [len(set(agglomerate(equal, "average", clusters=k).tolist())) for k in range(1, 6)] == [1, 2, 3, 4, 5]
    assert agglomerate(equal[:1, :1], "average", clusters=1).tolist() == [0]
    with pytest.raises(ValueError, match="one of clusters and threshold"):
        agglomerate(equal, "single")


def test_distances_of_vectors_by_hand():
    rows = np.array([[3.0, 4.0], [0.0, 0.0], [-3.0, -4.0], [4.0, -3.0]])
    assert vector_distances(rows, "l1")[0].tolist() == [0, 7, 14, 8]
    assert vector_distances(rows, "l2")[0].tolist() == pytest.approx([0, 5, 10, 50**0.5])
    assert vector_distances(rows, "cosine")[0].tolist() == pytest.approx([0, 1, 2, 1])


def test_angles_between_planes_are_those_they_were_built_with_whatever_the_signs():
    """The plane of e1, e2, and one turned from it by 20° and 50°; any other basis of either has the same angles."""
    turns = np.radians([20.0, 50.0])
    flat = np.eye(4)[:2]
    tilted = np.array([[np.cos(turns[0]), 0, np.sin(turns[0]), 0], [0, np.cos(turns[1]), 0, np.sin(turns[1])]])
    rng = np.random.default_rng(0)
    for _ in range(20):
        signs = rng.choice([-1.0, 1.0], size=(2, 1))
        turn = np.linalg.qr(rng.normal(size=(2, 2)))[0]
        other = turn @ (signs * tilted)
        np.testing.assert_allclose(nearest_subspaces([flat], [[other]], "smallest"), [20], atol=1e-6)
        np.testing.assert_allclose(nearest_subspaces([flat], [[other]], "sum"), [70], atol=1e-6)


def test_the_nearest_two_subspaces_count_and_ranks_may_differ():
    rng = np.random.default_rng(1)

    def basis(rank):
        return np.linalg.qr(rng.normal(size=(9, rank)))[0].T

    mine, others = [basis(3), basis(2)], [[basis(3)], [basis(1), basis(2), basis(3)]]
    for measure, reduce in (("smallest", np.min), ("sum", np.sum)):
        expected = [min(reduce(np.degrees(subspace_angles(a.T, b.T))) for a in mine for b in own) for own in others]
        np.testing.assert_allclose(nearest_subspaces(mine, others, measure), expected, atol=1e-5)
