"""FLT's and FedCUAU's bounds hold where their assumptions do, and the printed forms that are none do not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.stats import norm

from coterie.clustering import cuau


def misplacement_bound(samples: npt.ArrayLike, error: float) -> float:
    """A bound on the probability that any client's centroid of any label is misplaced (eq. 8). samples: (M, L).

    A single sample is misplaced with probability `error` < 1/2, by noise that is normal and independent; the mean of n
    samples then with Q(√n Q⁻¹(error)), and Q(x) <= exp(−x²/2). The paper prints n in place of √n, which is no bound.
    Labels that a client does not hold (0 samples) do not count.
    """
    counts = np.asarray(samples, dtype=np.float64)
    return float(np.exp(-counts[counts > 0] * norm.isf(error) ** 2 / 2).sum())


def mean_squared_step_bound(
    first_loss: float, last_loss: float, lr: float, smoothness: float, mixing: npt.NDArray[np.float64], rounds: int
) -> float:
    """A bound on the mean of ‖w_m^t − w_m^(t−1)‖² over M clients and T rounds (Theorem 1, eq. 18).

    The losses are the sums over the clients before the first and after the last round. One gradient step of size `lr`
    on functions with `smoothness`-Lipschitz gradients per round, then averaging by `mixing` (M, M). The paper's proof
    uses that averaging leaves the models where they are (W = A W) and is symmetric: so for clusters of equally large
    clients (case II) from a common start, not for every graph.
    """
    clients = len(mixing)
    apart = float(np.linalg.norm(np.eye(clients) - mixing, 2))
    rate = 1 / (2 * lr) - smoothness / 2 - lr / 2 * smoothness**2 * apart**2
    return (first_loss - last_loss) / (rounds * clients * rate)


def cuau_bounds(
    label_shares: npt.ArrayLike, samples: npt.ArrayLike, lr: float, smoothness: npt.ArrayLike, gradients: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """A bound on CUAU of each client (M,) by its labels alone (Proposition 1).

    label_shares: (M, L), p_k(y = i); samples: (M,). All clients take E full-batch steps of size `lr` from the same
    model. For each class i, `smoothness` (L,) is the Lipschitz constant λ_i of its mean gradient; `gradients` (E,) is
    g_max, the largest norm of a class's mean gradient, at each model on the way of training on all data together.

    ‖CU_k − CU_all‖ <= η Σ_i |p_k(i) − p(i)| Σ_t a_k^(E−1−t) g_max(t) with a_k = 1 + η Σ_i p_k(i) λ_i; the constant that
    is the same for all clients bounds ‖AU − CU_all‖ by the mean of these. The paper has a factor n_k / n before the
    first term and in a_k, with which it is no bound: a small client can be as far away as any.
    """
    shares = np.asarray(label_shares, dtype=np.float64)
    counts = np.asarray(samples, dtype=np.float64)
    largest = np.asarray(gradients, dtype=np.float64)
    weights = counts / counts.sum()
    gaps = np.abs(shares - weights @ shares).sum(axis=1)
    growth = 1 + lr * shares @ np.asarray(smoothness, dtype=np.float64)
    left = np.arange(len(largest))[::-1]
    alone = lr * gaps * (growth[:, None] ** left @ largest)
    return np.asarray(alone + weights @ alone)


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
