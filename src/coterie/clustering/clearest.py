"""The threshold γ under which the clients fall into clusters most clearly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.clustering.relatedness import auto_gamma, clear_level, related, ward_merges

Floats = npt.NDArray[np.float64]

CANDIDATES = 8


def clearest_gamma(distances: Floats, longest: float = float("inf")) -> float:
    """The γ whose relatedness has the clearest level in its dendrogram. distances: (M, M).

    Eight values are tried, from the median distance to the nearest client up to the median of all distances, or to
    `longest` if that is less, each a constant factor above the one before. The clearest is the one with the largest
    jump between two merge heights as a share of the last height (see `ward_clusters`); of equals the smallest. If no
    value gives a clear level, the distances alone decide (`auto_gamma`), which may find one family only.

    A gap in the distances, as `auto_gamma` looks for, is closed by a few clients that stand between two families; the
    rows of the relatedness matrix, compared as a whole, still tell the families apart.
    """
    clients = len(distances)
    if clients < 4:
        return auto_gamma(distances)
    apart = distances[~np.eye(clients, dtype=bool)].reshape(clients, clients - 1)
    top = min(float(np.median(apart)), longest)
    bottom = max(float(np.median(apart.min(axis=1))), 1e-4 * top)
    if not 0 < bottom < top:
        return auto_gamma(distances)
    best, clearest = None, 0.0
    for gamma in np.geomspace(bottom, top, CANDIDATES):
        level, share = clear_level(ward_merges(related(distances, float(gamma)))[:, 2])
        if level > 1 and share > clearest:
            best, clearest = float(gamma), share
    return auto_gamma(distances) if best is None else best
