"""Batched mixtures of linear regressions against the algorithm written out, and what success depends on."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from coterie_recipes.mixtures import MixtureSizes, allowed_distance, draw_mixture, draw_starts, fit, run_trial

SMALL = MixtureSizes(k=2, m=12, n=25, d=10, separation=1.0, sigma=0.1)


def written_out(data: tuple[torch.Tensor, ...], start: np.ndarray, step: float, iterations: int) -> np.ndarray:
    """Algorithm 1 with gradient averaging for one run, machine by machine, in float64."""
    x, y = data[0].double().numpy(), data[1].double().numpy()
    theta = start.astype(np.float64)
    for _ in range(iterations):
        total = np.zeros_like(theta)
        for xi, yi in zip(x, y, strict=True):
            j = int(np.argmin([np.mean((xi @ row - yi) ** 2) for row in theta]))
            total[j] += 2 / len(yi) * xi.T @ (xi @ theta[j] - yi)
        theta = theta - step / len(x) * total
    return theta


@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_run_of_a_batch_follows_the_algorithm(k: int) -> None:
    data = draw_mixture(SMALL._replace(k=k), 1)
    starts = draw_starts(k, 10, 4, 2)
    steps = [0.05, 0.1, 0.2, 0.4]
    found = fit(data, starts, steps, iterations=30)
    for models, start, step in zip(found, starts, steps, strict=True):
        expected = written_out(data, start.numpy(), step, 30)
        np.testing.assert_allclose(models.numpy(), expected, atol=2e-5)


def test_long_runs_follow_the_algorithm_too() -> None:
    data = draw_mixture(SMALL, 5)
    starts = draw_starts(2, 10, 6, 3)
    found = fit(data, starts, [0.2] * 6)
    for models, start in zip(found, starts, strict=True):
        np.testing.assert_allclose(models.numpy(), written_out(data, start.numpy(), 0.2, 300), atol=5e-5)


def test_a_mixture_has_the_truths_groups_and_noise_asked_for() -> None:
    sizes = MixtureSizes(2, 6, 4000, 5, 0.5, 0.3)
    data = draw_mixture(sizes, 0)
    assert set(data.truths.flatten().tolist()) <= {0.0, 0.5}
    assert data.groups.tolist() == [0, 1, 0, 1, 0, 1]
    noise = data.y - torch.stack([x @ data.truths[g] for x, g in zip(data.x, data.groups, strict=True)])
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02)


def test_diverging_runs_do_not_disturb_the_others() -> None:
    data, starts = draw_mixture(SMALL, 1), draw_starts(2, 10, 2, 2)
    together = fit(data, starts, [0.3, 50.0])
    alone = fit(data, starts[:1], [0.3])
    torch.testing.assert_close(together[:1], alone, rtol=0, atol=1e-5)
    assert not (together[1] - data.truths).norm() < 1


def test_a_trial_is_repeatable_and_stops_at_success() -> None:
    sizes = MixtureSizes(2, 20, 40, 20, 1.0, 0.1)
    first, again = (run_trial(sizes, (0.1, 0.5), 5, seed=3) for _ in range(2))
    assert first == again
    assert first.matched <= allowed_distance(0.1)
    assert first.paper <= first.matched + 1e-9
    assert first.runs in (5, 10)


def share(sizes: MixtureSizes, trials: int) -> float:
    limit = allowed_distance(sizes.sigma)
    outcomes = [run_trial(sizes, (0.1, 0.5), 2, seed, iterations=100) for seed in range(trials)]
    return float(np.mean([outcome.matched <= limit for outcome in outcomes]))


def test_success_rises_with_separation_machines_and_samples() -> None:
    base, trials = MixtureSizes(k=2, m=24, n=24, d=20, separation=1.0, sigma=0.1), 6
    error = 2 * np.sqrt(0.25 / trials)  # two standard errors of a share
    most = share(base, trials)
    for line in (
        [base._replace(separation=0.05)],
        [base._replace(m=4)],
        [base._replace(n=3)],
    ):
        shares = [*(share(sizes, trials) for sizes in line), most]
        assert all(b >= a - error for a, b in pairwise(shares))
        assert shares[-1] > shares[0] + 0.3


def test_well_separated_regressions_are_recovered() -> None:
    assert share(MixtureSizes(2, 50, 40, 100, 1.0, 0.1), trials=5) >= 0.8
