"""IFCA's theoretical setting (section 6.1): mixtures of linear regressions, many runs of the algorithm at once.

One data set is fitted from many starts and with many step sizes together, so that each pass over the data is one
large matrix product. This is Algorithm 1 with gradient averaging and full participation, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import matched_distance, paper_distance
from coterie.randomness import derive, numpy_generator

ITERATIONS = 300
THRESHOLD = 0.6
"""A trial succeeds when the distance is at most this many σ."""
NOISELESS = 1e-3
"""The largest distance of a success where σ = 0."""
CHECK_EVERY = 20
DIVERGED = 100.0
"""A run whose loss is this many times its first one is stopped."""
STILL = 1e-6
"""A run whose models move less than this per step is finished."""


class Mixture(NamedTuple):
    """One data set: `x: (m, n, d)`, `y: (m, n)`, the true `truths: (k, d)` and each machine's `groups: (m,)`."""

    x: Tensor
    y: Tensor
    truths: Tensor
    groups: Tensor


class MixtureSizes(NamedTuple):
    """The sizes of an experiment: k regressions in d dimensions, m machines with n samples each."""

    k: int
    m: int
    n: int
    d: int
    separation: float
    """R: every coordinate of a truth is 0 or R."""
    sigma: float


class Outcome(NamedTuple):
    """The least distance that any start and step size reached, by the paper's measure and matched one to one."""

    paper: float
    matched: float
    runs: int
    """Number of runs."""


def draw_mixture(sizes: MixtureSizes, seed: int) -> Mixture:
    """A data set: θ* ~ R·Bernoulli(½)^d, x ~ N(0, I), y = ⟨x, θ*⟩ + σε; machine i belongs to regression i mod k."""
    generator = numpy_generator(seed, "mixture")
    truths = torch.from_numpy(generator.integers(0, 2, (sizes.k, sizes.d)).astype(np.float32)) * sizes.separation
    x = torch.from_numpy(generator.standard_normal((sizes.m, sizes.n, sizes.d), dtype=np.float32))
    noise = torch.from_numpy(generator.standard_normal((sizes.m, sizes.n), dtype=np.float32))
    groups = torch.arange(sizes.m) % sizes.k
    y = torch.bmm(x, truths[groups][:, :, None])[:, :, 0] + sizes.sigma * noise
    return Mixture(x, y, truths, groups)


def draw_starts(k: int, d: int, runs: int, seed: int) -> Tensor:
    """Starting models `(runs, k, d)`, every coordinate Bernoulli(½)."""
    drawn = numpy_generator(seed, "starts").integers(0, 2, (runs, k, d))
    return torch.from_numpy(drawn.astype(np.float32))


def fit(data: Mixture, starts: Tensor, steps: Sequence[float], iterations: int = ITERATIONS) -> Tensor:
    """The models `(runs, k, d)` after IFCA from `starts: (runs, k, d)`, run s with step size `steps[s]`.

    Iterations are done in intervals. While a run's choices have not changed over an interval, the next one is done
    with fixed clusters, which needs no pass over the data, and then checked: where the choices did change, it is done
    again with choices in every iteration. (Choices that change and change back within 20 iterations go unnoticed.) A
    run that has converged or diverges is stopped early.
    """
    models, step_sizes = starts.clone(), torch.tensor(steps, dtype=starts.dtype)
    active, done = torch.arange(len(models)), 0
    first_losses, choices = _choose(data, models)
    settled = torch.zeros(len(models), dtype=torch.bool)
    grams: Grams = {}
    while done < iterations and len(active):
        length = min(CHECK_EVERY, iterations - done)
        before, held = models[active], choices[active]
        after = before.clone()
        quick = settled[active].nonzero()[:, 0].tolist()
        for s in quick:
            after[s] = _descend_with_fixed_clusters(
                data, before[s], held[s], float(step_sizes[active[s]]), length, grams
            )
        slow = [s for s in range(len(active)) if s not in quick]
        after[slow] = _descend(data, before[slow], step_sizes[active[slow]], length)
        losses, chosen = _choose(data, after)
        wrong = [s for s in quick if not torch.equal(chosen[s], held[s])]
        if wrong:
            after[wrong] = _descend(data, before[wrong], step_sizes[active[wrong]], length)
            losses[wrong], chosen[wrong] = _choose(data, after[wrong])
        models[active], choices[active] = after, chosen
        settled[active] = (chosen == held).all(dim=1)
        moved = torch.linalg.vector_norm(after - before, dim=2).amax(dim=1)
        active = active[(losses <= DIVERGED * first_losses[active]) & (moved > STILL * length)]
        done += length
    return models


Grams = dict[bytes, tuple[Tensor, Tensor]]
"""XᵀX `(d, d)` and Xᵀy `(d,)` by cluster, a cluster being the mask of its members."""


def _residuals(data: Mixture, models: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Residuals `(runs, k, m, n)`, and each machine's lowest loss and choice `(runs, m)`; ties to the lowest index."""
    (m, n, d), (runs, k, _) = data.x.shape, models.shape
    residuals = (models.reshape(runs * k, d) @ data.x.view(m * n, d).T).view(runs, k, m, n) - data.y
    lowest, choices = residuals.square().mean(dim=3).min(dim=1)
    return residuals, lowest, choices


def _choose(data: Mixture, models: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of the chosen models `(runs,)` and the choices `(runs, m)`."""
    _, lowest, choices = _residuals(data, models)
    return lowest.mean(dim=1), choices


def _descend(data: Mixture, models: Tensor, step_sizes: Tensor, length: int) -> Tensor:
    """Lines 3-13 of Algorithm 1, `length` times, for models `(runs, k, d)` with step sizes `(runs,)`."""
    m, n, _ = data.x.shape
    k = models.shape[1]
    for _ in range(length if len(models) else 0):
        residuals, _, choices = _residuals(data, models)
        chosen = residuals.gather(1, choices[:, None, :, None].expand(-1, -1, -1, n))[:, 0]  # (runs, m, n)
        gradients = torch.bmm(chosen.transpose(0, 1), data.x)  # (m, runs, d): of the chosen model only
        belongs = torch.nn.functional.one_hot(choices, k).to(models.dtype)  # (runs, m, k)
        total = torch.bmm(belongs.transpose(1, 2), gradients.transpose(0, 1))  # (runs, k, d)
        models = models - (2 / (n * m)) * step_sizes[:, None, None] * total
    return models


def _descend_with_fixed_clusters(
    data: Mixture, models: Tensor, choices: Tensor, step_size: float, length: int, grams: Grams
) -> Tensor:
    """The same for one run's models `(k, d)` with fixed clusters: only XᵀX and Xᵀy of each are needed."""
    m, n, d = data.x.shape
    models = models.clone()
    for j, theta in enumerate(models):
        members = choices == j
        key = members.numpy().tobytes()
        if key not in grams:
            x, y = data.x[members].view(-1, d), data.y[members].view(-1)
            grams[key] = (x.T @ x, x.T @ y)
        gram, target = grams[key]
        for _ in range(length):
            theta -= (2 * step_size / (n * m)) * (gram @ theta - target)
    return models


def run_trial(
    sizes: MixtureSizes, steps: Sequence[float], restarts: int, seed: int, iterations: int = ITERATIONS
) -> Outcome:
    """One trial: every restart with every step size, until one succeeds by the stricter, matched distance.

    All restarts use the middle step size first, then the others: runs after a success cannot change whether the trial
    succeeds, and a pass over the data costs hardly more for a few runs than for one.
    """
    data = draw_mixture(sizes, derive(seed, "data"))
    starts = draw_starts(sizes.k, sizes.d, restarts, derive(seed, "starts"))
    truths = data.truths.numpy()
    best = Outcome(float("inf"), float("inf"), 0)
    middle = len(steps) // 2
    for wave in (steps[middle : middle + 1], [*steps[:middle], *steps[middle + 1 :]]):
        if not wave or best.matched <= allowed_distance(sizes.sigma):
            continue
        found = fit(data, starts.repeat(len(wave), 1, 1), [step for step in wave for _ in starts], iterations)
        finite = found[torch.isfinite(found).flatten(1).all(dim=1)].numpy()
        best = Outcome(
            min([best.paper, *(paper_distance(models, truths) for models in finite)]),
            min([best.matched, *(matched_distance(models, truths) for models in finite)]),
            best.runs + len(found),
        )
    return best


def allowed_distance(sigma: float) -> float:
    """The largest distance of a successful trial."""
    return THRESHOLD * sigma if sigma else NOISELESS
