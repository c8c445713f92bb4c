"""UMAP of clients' centroids to few dimensions: the same for the same centroids, and newcomers move no other."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import extra

Floats = npt.NDArray[np.floating]

NEIGHBOURS = 15
COMPONENTS = 2
"""UMAP's own defaults."""
_SPECTRAL_NEEDS = 12
"""Points of which the spectral start can be computed."""
_UMAP_NEEDS = 5
"""Points of which a neighbourhood graph can be made."""


def project(centroids: Floats, seed: int) -> npt.NDArray[np.float32]:
    """Where UMAP puts each centroid: `(M, k, e)` gives `(M, k, 2)`; rows of nan (no such centroid) stay nan.

    The seed fixes UMAP's random state, so that equal centroids give equal positions. Fewer than five centroids are
    too few for a neighbourhood graph and are laid out by their own main directions instead.
    """
    real = ~np.isnan(centroids).any(axis=2)
    points = np.asarray(centroids[real], dtype=np.float32)
    placed = np.full((*real.shape, COMPONENTS), np.nan, dtype=np.float32)
    if len(points) < _UMAP_NEEDS:
        placed[real] = _main_directions(points, points)
    else:
        placed[real] = _fitted(points, seed).embedding_
    return placed


def place(newcomers: Floats, centroids: Floats, positions: Floats, seed: int) -> npt.NDArray[np.float32]:
    """Where centroids of newcomers `(N, k, e)` come to lie among `positions` `(M, k, 2)` of the `centroids` known.

    This is UMAP's transform from the positions given, which stay where they are.
    """
    real, new = ~np.isnan(centroids).any(axis=2), ~np.isnan(newcomers).any(axis=2)
    points = np.asarray(centroids[real], dtype=np.float32)
    arrived = np.asarray(newcomers[new], dtype=np.float32)
    placed = np.full((*new.shape, COMPONENTS), np.nan, dtype=np.float32)
    if len(points) < _UMAP_NEEDS:
        placed[new] = _main_directions(points, arrived)
    elif len(arrived):
        fitted = _fitted(points, seed)
        fitted.embedding_ = np.ascontiguousarray(positions[real], dtype=np.float32)
        fitted.transform_seed = seed % 2**32
        placed[new] = fitted.transform(arrived)
    return placed


def _fitted(points: npt.NDArray[np.float32], seed: int) -> Any:
    """UMAP fitted to points `(n, e)`; with few points it looks at fewer neighbours and starts at random."""
    layout = import_umap().UMAP(
        n_neighbors=min(NEIGHBOURS, len(points) - 1),
        n_components=COMPONENTS,
        init="spectral" if len(points) >= _SPECTRAL_NEEDS else "random",
        random_state=seed % 2**32,
        n_jobs=1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of graphs in several parts, which groups of clients are
        return layout.fit(points)


def import_umap() -> Any:
    """The umap module; without it, an error that names the extra to install."""
    with extra("flt", "FLT"):
        import umap
    return umap


def _main_directions(points: Floats, shown: Floats) -> Floats:
    """Coordinates `(n, 2)` of what is `shown` along the points' main directions."""
    middle = points.mean(axis=0)
    _, _, axes = np.linalg.svd(points - middle, full_matrices=False)
    flat = (shown - middle) @ axes[:COMPONENTS].T
    return np.asarray(np.pad(flat, ((0, 0), (0, COMPONENTS - flat.shape[1]))))
