"""UMAP's graph by array operations: its own to the last bit, and the neighbours that a full search would find."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.clustering.fuzzy_graph import fuzzy_graph, memberships, nearest


def points(n: int, seed: int = 0, e: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, e)) + 4 * rng.normal(size=(3, e))[np.arange(n) % 3]).astype(np.float32)


@pytest.mark.parametrize(("n", "k"), [(40, 39), (200, 15), (2100, 15)])
def test_neighbours_are_those_of_a_search_through_all(n: int, k: int) -> None:
    x = points(n)
    x[5] = x[7]  # two points in one place: the earlier one comes first
    found = nearest(x, x, k)
    for i in (0, 5, 7, n // 2, n - 1):
        exact = np.sqrt(((x[i] - x) ** 2).sum(axis=1, dtype=np.float64))
        order = np.argsort(exact, kind="stable")[:k]
        np.testing.assert_array_equal(found.indices[i], order)
        np.testing.assert_array_equal(found.distances[i], exact[order].astype(np.float32))


def test_far_from_the_origin_no_neighbour_is_lost() -> None:
    x = points(300).astype(np.float64)
    np.testing.assert_array_equal(
        nearest((x + 1000).astype(np.float32), (x + 1000).astype(np.float32), 10).indices,
        [
            np.argsort(np.linalg.norm(y - (x + 1000).astype(np.float32), axis=1), kind="stable")[:10]
            for y in (x + 1000).astype(np.float32)
        ],
    )


def test_weights_add_up_to_the_logarithm_of_the_neighbours() -> None:
    pytest.importorskip("numba")
    distances = nearest(points(100), points(100), 15).distances
    weights = memberships(distances, nearest_at=1)
    np.testing.assert_allclose(weights[:, 1:].sum(axis=1), np.log2(15), atol=1e-4)
    assert (weights[:, 1] == 1).all()
    assert (np.diff(weights[:, 1:], axis=1) <= 0).all()


def test_points_in_one_place_are_tied_fully() -> None:
    pytest.importorskip("numba")
    weights = memberships(np.zeros((4, 3), dtype=np.float32), nearest_at=1)
    np.testing.assert_array_equal(weights, np.ones((4, 3)))


@pytest.mark.parametrize(("n", "k"), [(30, 15), (400, 15), (60, 5)])
def test_the_graph_is_umaps_to_the_last_bit(n: int, k: int) -> None:
    umap = pytest.importorskip("umap.umap_")
    x = points(n, seed=n)
    apart = np.sqrt(((x[:, None] - x) ** 2).sum(axis=2, dtype=np.float64)).astype(np.float32)
    theirs, _, _ = umap.fuzzy_simplicial_set(apart, k, np.random.RandomState(0), "precomputed")
    ours = fuzzy_graph(x, k)
    np.testing.assert_array_equal(ours.toarray(), theirs.toarray())
