"""Published robust means: what a few hostile or broken clients cannot move far.

Every rule takes the updates `(n, d)` of one cluster and gives one vector `(d,)` in float64. All clients count alike: a
claimed number of samples is no evidence. f is the number of hostile updates that is expected.

A rule is (f, κ)-robust (Allouah et al. 2023, Definition 2) if for every subset S of n − f updates with mean m

    ‖rule − m‖² ≤ κ · 1/|S| · Σ_{i ∈ S} ‖x_i − m‖².

The sum is the heterogeneity of the honest clients, so κ is the price of their differences: training ends within
O(κ·G²) of a stationary point, where G² bounds the spread of honest gradients. No rule has κ < f/(n − 2f) (same
paper), and none stands n ≤ 2f.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.clustering.cosine import column_blocks

SMOOTHING = 1e-6
"""ν of the smoothed Weiszfeld iteration (Pillutla et al. 2022): distances below it count as it."""
ITERATIONS = 1000
"""Budget of that iteration; it ends where two steps are the same in float64."""


def mean(updates: Tensor) -> Tensor:
    """The mean of the updates. Breaks down with one hostile client."""
    return weighted_mean(updates, np.ones(updates.shape[0]))


def coordinate_median(updates: Tensor) -> Tensor:
    """The median of every coordinate (Yin et al. 2018); for an even number the mean of the two in the middle.

    Stands f < n/2; κ = b/(n − f − b) with b = ⌊(n − 1)/2⌋, as of the trimmed mean that cuts b: of the order of the
    heterogeneity even for f = 1. Allouah et al. 2023 have 4·(1 + f/(n − 2f))².
    """
    return trimmed_mean(updates, (updates.shape[0] - 1) // 2)


def trimmed_mean(updates: Tensor, hostile: int) -> Tensor:
    """The mean of every coordinate without its f smallest and f largest values (Yin et al. 2018).

    Stands f < n/2; κ = f/(n − 2f), the least that any rule can have (Allouah et al. 2023, whose bound for it is
    6f/(n − 2f)·(1 + f/(n − 2f))). Where b ≥ f are cut it is b/(n − f − b). Proof for one coordinate; in several both
    sides add up. Let S be N = n − f of the updates, with mean m and variance σ². The i-th smallest of all is at most
    the i-th smallest of S, so the result is at most the mean of S without its b smallest. A part of t of N numbers has
    a mean within σ·√((N − t)/t) of m, because the variance between it and the rest is at most σ²: here within
    σ·√(b/(N − b)). Likewise from below.

    Of fewer than 2f + 1 updates as many are left out as leave one or two.
    """
    count = updates.shape[0]
    cut = max(0, min(hostile, (count - 1) // 2))
    # NumPy sorts a few rows about eight times as fast as torch does.
    sorted_blocks = (np.sort(block.double().numpy(), axis=0) for block in column_blocks(updates))
    return torch.cat([torch.from_numpy(block[cut : count - cut].mean(axis=0)) for block in sorted_blocks])


def krum(updates: Tensor, hostile: int) -> Tensor:
    """The one update with the least Krum score (Blanchard et al. 2017).

    Stands 2f + 2 < n; κ = 6·(n − f)/(n − 2f − 1). Allouah et al. 2023 have 6·(n − f)/(n − 2f) for scores over n − f
    updates; their proof divides by how many of those scored are sure to be honest, here n − 2f − 1. It is the update of
    one client, whatever the others hold.
    """
    return mean(updates[np.argsort(krum_scores(updates, hostile), kind="stable")[:1]])


def multi_krum(updates: Tensor, hostile: int) -> Tensor:
    """The mean of the n − f updates with the least Krum scores (Blanchard et al. 2017, section 5).

    Stands 2f + 2 < n; its κ is at most Krum's: the n − f least scores sum to no more than those of any n − f updates,
    so Krum's proof holds on average over the chosen, and the mean of points is no farther than they are on average.
    """
    kept = np.argsort(krum_scores(updates, hostile), kind="stable")[: updates.shape[0] - _standable(updates, hostile)]
    return mean(updates[np.sort(kept)])


def krum_scores(updates: Tensor, hostile: int) -> npt.NDArray[np.float64]:
    """The sum of squared distances of each update to its n − f − 2 nearest others `(n,)`.

    Of fewer than 2f + 3 updates it expects as many hostile ones as Krum can stand.
    """
    nearest = max(1, updates.shape[0] - _standable(updates, hostile) - 2)
    sorted_distances = np.sort(squared_distances(updates), axis=1)
    return np.asarray(sorted_distances[:, 1 : 1 + nearest].sum(axis=1))


def geometric_median(updates: Tensor) -> Tensor:
    """The point with the least sum of distances to the updates, by the smoothed Weiszfeld iteration (RFA, Pillutla et
    al. 2022).

    Stands f < n/2; κ = 4·(1 + f/(n − 2f))² (Allouah et al. 2023). The point is a convex combination of the updates, so
    the iteration runs on its n coefficients.
    """
    squares = squared_distances(updates)
    share = np.full(len(squares), 1 / len(squares))
    for _ in range(ITERATIONS):
        # ‖x_i − Σ a_j x_j‖² from the distances between the updates, because Σ a_j = 1.
        apart = np.sqrt(np.maximum(squares @ share - 0.5 * share @ squares @ share, SMOOTHING**2))
        after = 1 / apart
        after /= after.sum()
        same = bool(np.abs(after - share).max() <= np.finfo(np.float64).eps)
        share = after
        if same:
            break
    return weighted_mean(updates, share)


def centred_clip(updates: Tensor, radius: float, start: Tensor | None = None) -> Tensor:
    """One step of centred clipping from `start` v `(d,)` (Karimireddy, He, Jaggi 2021).

        v + 1/n Σ (x_i − v)·min(1, τ/‖x_i − v‖)

    Stands f ≤ n/10 with an error O(f/n)·ρ², where ρ² is the squared distance between two honest updates, if clients
    send momenta (`optimizer=momentum`, `keep_optimizer=true`) and τ is of the order of ρ·√(n/f). One client moves the
    result by at most τ/n. The paper starts from the previous round's result; clusters whose members change have none,
    so the default start is the coordinate median.
    """
    centre = coordinate_median(updates) if start is None else start.double()
    squares = torch.zeros(updates.shape[0], dtype=torch.float64)
    offset = 0
    for block in column_blocks(updates):
        squares += (block.double() - centre[offset : offset + block.shape[1]]).square().sum(dim=1)
        offset += block.shape[1]
    kept = torch.clamp(radius / squares.sqrt().clamp_min(torch.finfo(torch.float64).tiny), max=1.0)
    count = updates.shape[0]
    return (1 - kept.sum() / count) * centre + _combined(updates, kept[None].numpy() / count)[0]


def bucketing(updates: Tensor, size: int, order: npt.NDArray[np.integer]) -> Tensor:
    """The means of buckets of `size` updates in a random `order` `(n,)`, `(⌈n/size⌉, d)` (Karimireddy et al. 2022).

    A step before a rule: honest updates become more alike (their variance falls by `size`), and up to f buckets are
    hostile, so the rule stands f < n/(2·size) of its own kind.
    """
    count = updates.shape[0]
    shares = np.zeros((-(-count // size), count))
    shares[np.arange(count) // size, order] = 1.0
    return _combined(updates, shares / shares.sum(axis=1, keepdims=True))


def nearest_neighbour_mixing(updates: Tensor, hostile: int) -> Tensor:
    """Every update replaced by the mean of its n − f nearest, itself included, `(n, d)` (Allouah et al. 2023).

    A step before a rule: a rule with κ becomes one with κ' = 8f/(n − f)·(κ + 1), so that every rule above reaches the
    lowest order O(f/n). Stands f < n/2.
    """
    count = updates.shape[0]
    near = np.argsort(squared_distances(updates), axis=1, kind="stable")[:, : max(1, count - hostile)]
    shares = np.zeros((count, count))
    np.put_along_axis(shares, near, 1 / near.shape[1], axis=1)
    return _combined(updates, shares)


def weighted_mean(updates: Tensor, weights: npt.ArrayLike) -> Tensor:
    """Σ w_i x_i / Σ w_i."""
    given = np.asarray(weights, dtype=np.float64)
    return _combined(updates, given[None] / given.sum())[0]


def squared_distances(updates: Tensor) -> npt.NDArray[np.float64]:
    """‖x_i − x_j‖² for every pair `(n, n)`, exact to about 1e-12 of the largest."""
    gram = torch.zeros(updates.shape[0], updates.shape[0], dtype=torch.float64)
    for block in column_blocks(updates):
        # Distances do not change when the same vector is taken off all, and small numbers cancel less.
        wide = block.double() - block[:1].double()
        gram += wide @ wide.T
    squares = gram.diagonal()
    return np.asarray((squares[:, None] + squares[None, :] - 2 * gram).clamp_min(0).fill_diagonal_(0).numpy())


def _standable(updates: Tensor, hostile: int) -> int:
    """The hostile updates that Krum expects: f, and of few updates the most it can stand."""
    return max(0, min(hostile, (updates.shape[0] - 3) // 2))


def _combined(updates: Tensor, shares: npt.NDArray[np.float64]) -> Tensor:
    """`shares @ updates` in float64, block by block."""
    factors = torch.from_numpy(np.ascontiguousarray(shares))
    return torch.cat([factors @ block.double() for block in column_blocks(updates)], dim=1)
