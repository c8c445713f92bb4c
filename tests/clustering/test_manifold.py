"""UMAP: identical on re-run, gaps stay gaps, few points do not break it, and newcomers move nobody."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from coterie.clustering.manifold import import_umap, place, project
from coterie.errors import ConfigError


def test_without_umap_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ConfigError, match=r'pip install "coterie\[flt\]"'):
        import_umap()


def two_heaps(clients: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    far = 30.0 * (np.arange(clients) % 2)
    return (rng.normal(size=(clients, 3, 6)) + far[:, None, None]).astype(np.float32)


def test_projection_is_identical_on_rerun_and_keeps_missing_centroids_missing() -> None:
    pytest.importorskip("umap")
    points = two_heaps(16)
    points[3, 2] = np.nan
    first, again = project(points, 7), project(points, 7)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, project(points, 8), equal_nan=True)
    assert np.isnan(first[3, 2]).all()
    assert np.isnan(first).sum() == 2
    left, right = first[0::2].reshape(-1, 2), first[1::2].reshape(-1, 2)
    right = right[~np.isnan(right).any(axis=1)]
    gaps = np.linalg.norm(left[:, None] - right[None], axis=2)
    assert gaps.min() > np.linalg.norm(left[:, None] - left[None], axis=2).mean()


def test_newcomers_land_with_their_kind_and_nobody_moves() -> None:
    pytest.importorskip("umap")
    points = two_heaps(16)
    positions = project(points, 0)
    kept = positions.copy()
    late = two_heaps(4, seed=5)
    placed = place(late, points, positions, 0)
    np.testing.assert_array_equal(positions, kept)
    np.testing.assert_array_equal(placed, place(late, points, positions, 0))
    assert not np.array_equal(placed, place(late, points, positions, 1))
    for i, spot in enumerate(placed):
        same, other = positions[i % 2 :: 2].reshape(-1, 2), positions[1 - i % 2 :: 2].reshape(-1, 2)
        assert np.linalg.norm(spot[0] - same, axis=1).min() < np.linalg.norm(spot[0] - other, axis=1).min()


def test_given_positions_decide_even_if_umap_would_now_put_them_elsewhere() -> None:
    pytest.importorskip("umap")
    points = two_heaps(16)
    moved = project(points, 0) + 1000
    assert (place(two_heaps(2, seed=5), points, moved, 0) > 500).all()


@pytest.mark.parametrize("clients", [1, 2, 3, 5])
def test_few_points_are_placed_too(clients: int) -> None:
    if clients * 2 >= 5:
        pytest.importorskip("umap")
    points = two_heaps(clients)[:, :2]
    positions = project(points, 0)
    assert positions.shape == (clients, 2, 2)
    assert np.isfinite(positions).all()
    assert np.isfinite(place(points[:1], points, positions, 0)).all()
