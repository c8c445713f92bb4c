"""FedCUAU's measure of how heterogeneous a client is, and clusters by its percentiles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from coterie.clustering.cosine import Updates, column_blocks


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


def neutral_cuau(
    first: torch.Tensor, second: torch.Tensor, samples: npt.ArrayLike, output: torch.Tensor
) -> npt.NDArray[np.float64]:
    """CUAU without the noise of few samples, from the updates of two halves of each client's data. (M, d) each; (M,).

    ‖CU_k − AU‖ holds the noise of the update, which is larger the fewer samples there are. Two halves have independent
    noise, so products of CU'_k − AU' with CU''_k − AU'' have none on average. See `half_distances` for `output` (d,).
    """
    one, two = first.double(), second.double()
    shares = _shares(one, samples)
    return np.asarray(half_distances(one - shares @ one, two - shares @ two, output).numpy())


def half_distances(one: torch.Tensor, two: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """How far two halves' updates agree to be from the mean: Σ over outputs of the root of ⟨one, two⟩. (M, d); (M,).

    `output` (d,) numbers the output of a layer that each weight belongs to. The weights of a class's output are moved
    by how much more of that class a client holds than all do, so the sum over outputs follows Σ_y |p_k(y) − p(y)|, the
    labels' distance; the root of the whole product would follow its largest terms. Each root has its product's sign: a
    client that differs from the others by its noise alone is as often below zero as above.
    """
    products = torch.zeros(len(one), int(output.max()) + 1, dtype=one.dtype)
    products.index_add_(1, output, one * two)
    return (products.sign() * products.abs().sqrt()).sum(dim=1)


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
