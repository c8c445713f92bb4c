"""Does a newcomer fit a cluster as well as its own clients do? Conformal p-values (Vovk, Gammerman, Shafer 2005).

A score says how badly a client fits a cluster. A newcomer's is ranked among those of the clients that are in clusters,
each left out of its own: if the newcomer is drawn as they were, every rank is equally likely.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def distances(rows: Floats, known: Floats, clusters: Ints) -> Floats:
    """Distances `(n, k)` of rows `(n, e)` to the means of k clusters of known rows `(m, e)`."""
    means = np.stack([known[clusters == c].mean(0) for c in range(int(clusters.max()) + 1)])
    return np.asarray(np.linalg.norm(rows[:, None] - means, axis=2))


def left_out_distances(known: Floats, clusters: Ints) -> Floats:
    """The same `(m, k)` of the known rows, each left out of its own cluster; infinite where it is alone there."""
    found = distances(known, known, clusters)
    sizes = np.bincount(clusters)[clusters].astype(float)
    own = np.arange(len(known)), clusters
    # The mean without a row lies n / (n - 1) times as far from it as the mean with it.
    found[own] *= sizes / np.maximum(sizes - 1, 1)
    found[own] = np.where(sizes > 1, found[own], np.inf)
    return found


def relative(found: Floats) -> Floats:
    """Distances `(n, k)` over that to the nearest other cluster: small where a row is clearly of a cluster; k > 1."""
    others = np.stack([np.delete(found, c, 1).min(1) for c in range(found.shape[1])], axis=1)
    least = np.finfo(float).tiny  # equal rows are equally near
    with np.errstate(over="ignore"):
        return np.asarray((found + least) / (others + least))


def p_values(scores: Floats, known: Floats) -> Floats:
    """For each score, of any shape, the share of it and the known scores `(m,)` that are at least as large."""
    ordered = np.sort(known)
    larger = len(known) - np.searchsorted(ordered, scores, side="left")
    return np.asarray((1 + larger) / (1 + len(known)))
