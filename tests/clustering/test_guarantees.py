"""FLT's and FedCUAU's bounds hold where their assumptions do, and the printed forms that are none do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from coterie.clustering.divergence import cuau, cuau_bounds
from coterie.clustering.guarantees import mean_squared_step_bound, misplacement_bound


@pytest.mark.parametrize("seed", range(20))
def test_the_chance_that_any_centroid_is_misplaced_is_below_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = rng.integers(0, 40, size=(rng.integers(1, 6), rng.integers(1, 5)))
    error = float(rng.uniform(0.01, 0.49))
    held = samples[samples > 0]
    exact = 1 - np.prod(1 - norm.sf(np.sqrt(held) * norm.isf(error)))
    assert exact <= misplacement_bound(samples, error) + 1e-12


def test_more_samples_lower_the_bound_and_the_printed_form_is_none() -> None:
    bounds = [misplacement_bound([[n]], 0.3) for n in (1, 10, 100)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[1] == pytest.approx(np.exp(-10 * 0.5244005127080407**2 / 2))
    printed = np.exp(-((10 * norm.isf(0.3)) ** 2) / 2)
    assert printed < norm.sf(np.sqrt(10) * norm.isf(0.3)) < bounds[1]
    with pytest.raises(ValueError, match=r"0\.5 a sample says nothing"):
        misplacement_bound([[3]], 0.5)
    with pytest.raises(ValueError, match="negative"):
        misplacement_bound([[-1]], 0.1)


@pytest.mark.parametrize("seed", range(20))
def test_the_mean_squared_step_stays_below_the_theorems_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients, d, rounds = int(rng.integers(2, 9)), 3, int(rng.integers(1, 30))
    labels = rng.integers(0, 3, clients)
    mixing = (labels[:, None] == labels).astype(float)
    mixing /= mixing.sum(axis=1, keepdims=True)
    roots = rng.normal(size=(clients, d, d))
    hessians = roots @ roots.transpose(0, 2, 1)
    centres = rng.normal(size=(clients, d))
    smoothness = float(np.linalg.eigvalsh(hessians).max())
    lr = 0.4 / smoothness

    def loss(w: np.ndarray) -> float:
        gap = w - centres
        return float(0.5 * np.einsum("mi,mij,mj->", gap, hessians, gap))

    w = np.tile(rng.normal(size=d), (clients, 1))
    start, moved = loss(w), 0.0
    for _ in range(rounds):
        after = mixing @ (w - lr * np.einsum("mij,mj->mi", hessians, w - centres))
        moved, w = moved + float(((after - w) ** 2).sum()), after
    bound = mean_squared_step_bound(start, loss(w), lr, smoothness, mixing, rounds)
    assert 0 < moved / (rounds * clients) <= bound


def test_a_step_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        mean_squared_step_bound(1.0, 0.0, 1.0, 2.0, np.eye(2), 5)


@pytest.mark.parametrize("seed", range(10))
def test_cuau_stays_below_proposition_one(seed: int) -> None:
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    clients, classes, steps, lr = 6, 4, int(rng.integers(1, 6)), 0.1
    x = torch.randn(classes, 5, 3, dtype=torch.float64) + torch.randn(classes, 1, 3, dtype=torch.float64)
    shares = rng.dirichlet([0.4] * classes, clients)
    samples = rng.integers(1, 100, clients)
    smoothness = 0.5 * x.square().sum(dim=2).mean(dim=1).numpy()  # of softmax regression: half the mean ‖x‖²

    def class_gradients(w: torch.Tensor) -> torch.Tensor:
        errors = torch.softmax(x @ w, dim=2) - torch.eye(classes, dtype=torch.float64)[:, None, :]
        return x.transpose(1, 2) @ errors / x.shape[1]

    def trained(p: torch.Tensor) -> tuple[torch.Tensor, list[float]]:
        w, largest = torch.zeros(3, classes, dtype=torch.float64), []
        for _ in range(steps):
            found = class_gradients(w)
            largest.append(float(found.flatten(1).norm(dim=1).max()))
            w = w - lr * (p[:, None, None] * found).sum(0)
        return w, largest

    updates = torch.stack([trained(torch.from_numpy(p))[0].flatten() for p in shares])
    pooled = torch.from_numpy(samples @ shares / samples.sum())
    bounds = cuau_bounds(shares, samples, lr, smoothness, trained(pooled)[1])
    values = cuau(updates, samples)
    assert (values <= bounds + 1e-12).all()
    alike = cuau_bounds(np.tile(shares[0], (clients, 1)), samples, lr, smoothness, [1.0] * steps)
    assert alike == pytest.approx(np.zeros(clients), abs=1e-12)
