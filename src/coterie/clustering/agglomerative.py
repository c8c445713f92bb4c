"""Dendrograms of clients by their distances, and clusters where the last merges are undone."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt


def dendrogram(
    distances: npt.NDArray[np.floating], method: Literal["average", "complete", "ward"]
) -> npt.NDArray[np.float64]:
    """The merges (M - 1, 4) of agglomerative clustering, in scipy's form and by its `method`. distances: (M, M)."""
    from scipy.cluster.hierarchy import linkage  # it takes long to load, and few runs need it
    from scipy.spatial.distance import squareform

    return np.asarray(linkage(squareform(distances, checks=False), method))


def cut(merges: npt.NDArray[np.float64], clusters: int) -> npt.NDArray[np.int64]:
    """Labels (M,) of exactly `clusters` clusters, numbered by their first member.

    merges: (M - 1, 4) in scipy's form, heights rising. Cutting by height cannot part merges of equal height (scipy's
    `fcluster` then returns fewer clusters than asked for); undoing the last merges can.
    """
    members = len(merges) + 1
    if not 1 <= clusters <= members:
        raise ValueError(f"clusters is {clusters}, expected 1 to {members}")
    label = np.arange(2 * members - 1)
    # A merge has a larger number than both its parts, so going down from the last merge kept hands labels on correctly.
    for merge in range(members - clusters - 1, -1, -1):
        label[merges[merge, :2].astype(np.int64)] = label[members + merge]
    _, first, labels = np.unique(label[:members], return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[labels].astype(np.int64)
