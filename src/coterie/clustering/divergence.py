"""FedCUAU's measure of how heterogeneous a client is, and clusters by its percentiles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from coterie.clustering.blocks import Updates, column_blocks


def aggregate_update(updates: Updates, samples: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """AU, the mean of the clients' updates weighted by their numbers of samples. updates: (M, d); samples: (M,)."""
    shares = _shares(updates, samples)
    return np.concatenate([np.zeros(0)] + [(shares @ block.double()).numpy() for block in column_blocks(updates)])


def cuau(updates: Updates, samples: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """CUAU, each client's distance ‖CU_k − AU‖ from the aggregate update. updates: (M, d); samples: (M,); returns (M,).

    AU = Σ (n_k / n) CU_k. The paper divides by the number of clients once more, but its weights already sum to one.
    """
    shares = _shares(updates, samples)
    squares = torch.zeros(len(shares), dtype=torch.float64)
    for block in column_blocks(updates):
        wide = block.double()
        squares += (wide - shares @ wide).square().sum(dim=1)
    return np.asarray(squares.sqrt().numpy())


def _shares(updates: Updates, samples: npt.ArrayLike) -> torch.Tensor:
    """Each client's share (M,) of all samples."""
    counts = np.asarray(samples, dtype=np.float64)
    if counts.shape != (updates.shape[0],) or (counts < 0).any() or not counts.sum() > 0:
        raise ValueError(f"samples must be {updates.shape[0]} numbers >= 0, not all zero")
    return torch.from_numpy(counts / counts.sum())


def percentile_clusters(values: npt.ArrayLike, clusters: int) -> npt.NDArray[np.int64]:
    """Cut clients, ranked by (value, position), into `clusters` runs whose sizes differ by at most one.

    values: (M,); returns labels (M,) from 0, which holds the smallest value, to clusters - 1. Ranks instead of bounds
    on the values: every client gets exactly one cluster and no cluster is empty, however many values are equal.
    """
    ranked = np.asarray(values, dtype=np.float64)
    members = len(ranked)
    if not 1 <= clusters <= members:
        raise ValueError(f"clusters is {clusters}, expected 1 to {members}, the number of clients")
    if np.isnan(ranked).any():
        raise ValueError("values hold nan, which has no rank")
    labels = np.empty(members, dtype=np.int64)
    labels[np.argsort(ranked, kind="stable")] = np.arange(members) * clusters // members
    return labels
