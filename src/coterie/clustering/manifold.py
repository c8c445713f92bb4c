"""UMAP of clients' centroids to the plane: the same for the same centroids, and newcomers move nobody."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import extra

Floats = npt.NDArray[np.floating]

NEIGHBOURS = 15
COMPONENTS = 2
SPREAD = 1.0
"""UMAP's scale of the plane: points of one patch lie within about this distance."""
_SPECTRAL_NEEDS = 12
_UMAP_NEEDS = 5


def project(centroids: Floats, seed: int) -> npt.NDArray[np.float32]:
    """Where UMAP puts each centroid: `(M, k, e)` gives `(M, k, 2)`; rows of nan (no such centroid) stay nan.

    The seed fixes UMAP's random state, so that equal centroids give equal positions. Fewer than five centroids in all
    are too few for a neighbourhood graph and are laid out by their own two main directions instead.
    """
    real = ~np.isnan(centroids).any(axis=2)
    points = np.asarray(centroids[real], dtype=np.float32)
    placed = np.full((*real.shape, COMPONENTS), np.nan, dtype=np.float32)
    placed[real] = _main_directions(points) if len(points) < _UMAP_NEEDS else _fit(points, seed).embedding_
    return placed


def place(newcomers: Floats, centroids: Floats, positions: Floats, seed: int) -> npt.NDArray[np.float32]:
    """Where centroids of newcomers `(N, k, e)` come to lie among `positions` `(M, k, 2)` of the `centroids` known.

    A fitted UMAP cannot be saved without pickle, so it is fitted again from the stored centroids with the stored seed;
    the positions given are then used as they are, so that not even another version of UMAP moves those already placed.
    """
    real, new = ~np.isnan(centroids).any(axis=2), ~np.isnan(newcomers).any(axis=2)
    points = np.asarray(centroids[real], dtype=np.float32)
    placed = np.full((*new.shape, COMPONENTS), np.nan, dtype=np.float32)
    if len(points) < _UMAP_NEEDS:
        centre = points.mean(axis=0)
        placed[new] = _main_directions(points, np.asarray(newcomers[new], dtype=np.float32), centre)
        return placed
    fitted = _fit(points, seed)
    fitted.embedding_ = np.ascontiguousarray(positions[real], dtype=np.float32)
    placed[new] = fitted.transform(np.asarray(newcomers[new], dtype=np.float32))
    return placed


def _fit(points: npt.NDArray[np.float32], seed: int) -> Any:
    """UMAP fitted to points `(n, e)`; with few points it looks at fewer neighbours and starts at random."""
    umap = import_umap()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that a fixed seed means one thread, which is what is wanted
        return umap.UMAP(
            n_neighbors=min(NEIGHBOURS, len(points) - 1),
            n_components=COMPONENTS,
            spread=SPREAD,
            random_state=seed % 2**32,
            init="spectral" if len(points) >= _SPECTRAL_NEEDS else "random",
            n_jobs=1,
        ).fit(points)


def import_umap() -> Any:
    """The umap module; without it, an error that names the extra to install."""
    with extra("flt", "FLT"):
        import umap
    return umap


def _main_directions(points: Floats, shown: Floats | None = None, centre: Floats | None = None) -> Floats:
    """Coordinates `(n, 2)` of `shown` (default: the points themselves) along the two main directions of the points."""
    middle = points.mean(axis=0) if centre is None else centre
    _, _, axes = np.linalg.svd(points - middle, full_matrices=False)
    flat = ((points if shown is None else shown) - middle) @ axes[:COMPONENTS].T
    return np.asarray(np.pad(flat, ((0, 0), (0, COMPONENTS - flat.shape[1]))))
