"""FLT's guarantees as functions: how often clients are misplaced (appendix D.1), how far models still move (D.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def misplacement_bound(samples: npt.ArrayLike, error: float) -> float:
    """A bound on the probability that any client's centroid of any label is misplaced (eq. 8). samples: (M, L).

    A single sample is misplaced with probability `error` < 1/2, by noise that is normal and independent; the mean of n
    samples then with Q(√n Q⁻¹(error)), and Q(x) <= exp(−x²/2). The paper prints n in place of √n, which is no bound.
    Labels that a client does not hold (0 samples) do not count.
    """
    if not 0 < error < 0.5:
        raise ValueError(f"error is {error}, expected between 0 and 0.5: at 0.5 a sample says nothing")
    counts = np.asarray(samples, dtype=np.float64)
    if (counts < 0).any():
        raise ValueError("samples hold negative numbers")
    return float(np.exp(-counts[counts > 0] * _upper_quantile(error) ** 2 / 2).sum())


def _upper_quantile(probability: float) -> float:
    """Q⁻¹: what a standard normal variable exceeds with that probability."""
    from scipy.special import ndtri

    return float(-ndtri(probability))


def mean_squared_step_bound(
    first_loss: float, last_loss: float, lr: float, smoothness: float, mixing: Floats, rounds: int
) -> float:
    """A bound on the mean of ‖w_m^t − w_m^(t−1)‖² over M clients and T rounds (Theorem 1, eq. 18).

    The losses are the sums over the clients before the first and after the last round. One gradient step of size `lr`
    on functions with `smoothness`-Lipschitz gradients per round, then averaging by `mixing` (M, M). The paper's proof
    uses that averaging leaves the models where they are (W = A W) and is symmetric: so for clusters of equally large
    clients (case II) from a common start, not for every graph.

    Raises:
        ValueError: the step is too long for the theorem to say anything.
    """
    clients = len(mixing)
    apart = float(np.linalg.norm(np.eye(clients) - mixing, 2))
    rate = 1 / (2 * lr) - smoothness / 2 - lr / 2 * smoothness**2 * apart**2
    if rate <= 0:
        raise ValueError(f"lr={lr:g} is too large for smoothness {smoothness:g}: the theorem needs a shorter step")
    return (first_loss - last_loss) / (rounds * clients * rate)
