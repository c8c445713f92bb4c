"""UMAP of clients' centroids to few dimensions: the same for the same centroids, and newcomers move nobody."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.clustering.fuzzy_graph import fuzzy_graph, memberships, nearest
from coterie.errors import extra

Floats = npt.NDArray[np.floating]

NEIGHBOURS = 15
COMPONENTS = 2
SPREAD = 1.0
"""UMAP's scale of the plane: points of one patch lie within about this distance."""
_LEAST_DISTANCE = 0.1
_FIRST_STEP = 1.0
_REPULSION = 1.0
_NEGATIVE_SAMPLES = 5
"""UMAP's own defaults, from the distance of near points in the plane on."""
_NEWCOMER_EPOCHS = 100
_SPECTRAL_NEEDS = 12
_UMAP_NEEDS = 5


def project(
    centroids: Floats, seed: int, neighbours: int = NEIGHBOURS, components: int = COMPONENTS
) -> npt.NDArray[np.float32]:
    """Where UMAP puts each centroid: `(M, k, e)` gives `(M, k, u)`; rows of nan (no such centroid) stay nan.

    The seed fixes UMAP's random state, so that equal centroids give equal positions. Fewer than five centroids in all
    (or than u + 2) are too few for a neighbourhood graph and are laid out by their own main directions instead.
    """
    real = ~np.isnan(centroids).any(axis=2)
    points = np.asarray(centroids[real], dtype=np.float32)
    placed = np.full((*real.shape, components), np.nan, dtype=np.float32)
    if _too_few(points, components):
        placed[real] = _main_directions(points, components)
    else:
        placed[real] = _fit(points, seed, neighbours, components)
    return placed


def place(
    newcomers: Floats, centroids: Floats, positions: Floats, seed: int, neighbours: int = NEIGHBOURS
) -> npt.NDArray[np.float32]:
    """Where centroids of newcomers `(N, k, e)` come to lie among `positions` `(M, k, u)` of the `centroids` known.

    A newcomer starts at the weighted mean of its neighbours' positions and is moved by UMAP's steps, while those
    already placed stay where they are.
    """
    real, new = ~np.isnan(centroids).any(axis=2), ~np.isnan(newcomers).any(axis=2)
    points = np.asarray(centroids[real], dtype=np.float32)
    arrived = np.asarray(newcomers[new], dtype=np.float32)
    components = positions.shape[2]
    placed = np.full((*new.shape, components), np.nan, dtype=np.float32)
    if _too_few(points, components):
        placed[new] = _main_directions(points, components, arrived)
    elif len(arrived):
        spots = np.ascontiguousarray(positions[real], dtype=np.float32)
        placed[new] = _join(arrived, points, spots, seed, min(neighbours, len(points) - 1))
    return placed


def _too_few(points: Floats, components: int) -> bool:
    return len(points) < max(_UMAP_NEEDS, components + 2)


def _fit(points: npt.NDArray[np.float32], seed: int, neighbours: int, components: int) -> Any:
    """UMAP's positions of points `(n, e)`; with few points it looks at fewer neighbours and starts at random."""
    layout = _steps()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of graphs in several parts, which groups of clients are
        positions, _ = layout.simplicial_set_embedding(
            points,
            fuzzy_graph(points, min(neighbours, len(points) - 1)),
            components,
            _FIRST_STEP,
            *layout.find_ab_params(SPREAD, _LEAST_DISTANCE),
            _REPULSION,
            _NEGATIVE_SAMPLES,
            None,
            "spectral" if len(points) >= _SPECTRAL_NEEDS else "random",
            np.random.RandomState(seed % 2**32),
            "euclidean",
            {},
            False,
            {},
            False,
        )
    return positions


def _join(
    arrived: npt.NDArray[np.float32],
    points: npt.NDArray[np.float32],
    spots: npt.NDArray[np.float32],
    seed: int,
    neighbours: int,
) -> Any:
    """Positions of points that `arrived` `(n, e)` among `points` `(m, e)` that lie at `spots` `(m, u)`."""
    layout = _steps()
    found = nearest(arrived, points, neighbours)
    weights = memberships(found.distances, nearest_at=0)
    starts = (weights[:, :, None] * spots[found.indices]).sum(axis=1) / weights.sum(axis=1, keepdims=True)
    same = found.distances[:, 0] == 0
    starts[same] = spots[found.indices[same, 0]]
    kept = weights >= weights.max() / _NEWCOMER_EPOCHS
    rows, columns = np.nonzero(kept)
    return layout.optimize_layout_euclidean(
        np.ascontiguousarray(starts, dtype=np.float32),
        spots.copy(),
        rows.astype(np.int32),
        found.indices[rows, columns].astype(np.int32),
        _NEWCOMER_EPOCHS,
        len(points),
        layout.make_epochs_per_sample(weights[kept], _NEWCOMER_EPOCHS),
        *layout.find_ab_params(SPREAD, _LEAST_DISTANCE),
        np.random.RandomState(seed % 2**32).randint(-(2**31) + 1, 2**31 - 1, 3).astype(np.int64),
        _REPULSION,
        _FIRST_STEP / 4,
        _NEGATIVE_SAMPLES,
    )


def _steps() -> Any:
    """UMAP's module with its layout functions (`UMAP.fit` would compile many more than these for its graph)."""
    import_umap()
    import umap.umap_

    return umap.umap_


def import_umap() -> Any:
    """The umap module; without it, an error that names the extra to install."""
    with extra("flt", "FLT"):
        import umap
    return umap


def _main_directions(points: Floats, components: int, shown: Floats | None = None) -> Floats:
    """Coordinates `(n, components)` of `shown` (default: the points themselves) along the points' main directions."""
    middle = points.mean(axis=0)
    _, _, axes = np.linalg.svd(points - middle, full_matrices=False)
    flat = ((points if shown is None else shown) - middle) @ axes[:components].T
    return np.asarray(np.pad(flat, ((0, 0), (0, components - flat.shape[1]))))
