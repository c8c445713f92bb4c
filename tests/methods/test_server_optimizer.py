"""The server's optimisers, worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from coterie.methods.server_optimizer import ServerOptimizer

BOTH = torch.tensor([True, False])


def rounds(spec: str, *updates: float) -> list[float]:
    """What is added for the trainable number in each round; the other, a buffer, follows the update."""
    optimizer, found = ServerOptimizer.parse(spec), []
    for update in updates:
        step = optimizer.direction("0", torch.tensor([update, update], dtype=torch.float64), BOTH)
        assert step[1] == update
        found.append(float(step[0]))
    return found


def test_momentum_by_hand() -> None:
    assert rounds("avgm:momentum=0.5,lr=2", 1, 2, -1) == pytest.approx([2 * 1, 2 * 2.5, 2 * 0.25])


def test_adam_by_hand() -> None:
    """Algorithm 2 of Reddi et al. with β1 = 0.5, β2 = 0.75, τ = 0.1, η = 1, so v starts at 0.01."""
    v1 = 0.75 * 0.01 + 0.25 * 4
    v2 = 0.75 * v1 + 0.25 * 1
    expected = [1.0 / (math.sqrt(v1) + 0.1), (0.5 * 1.0 + 0.5 * -1) / (math.sqrt(v2) + 0.1)]
    assert rounds("adam:lr=1,beta1=0.5,beta2=0.75,tau=0.1", 2, -1) == pytest.approx(expected, abs=1e-12)


def test_yogi_by_hand() -> None:
    """v moves towards the square by a share of the square: up when it is below, down when it is above."""
    v1 = 0.01 + 0.25 * 4
    v2 = v1 - 0.25 * 0.25
    expected = [1.0 / (math.sqrt(v1) + 0.1), (0.5 * 1.0 + 0.5 * 0.5) / (math.sqrt(v2) + 0.1)]
    assert rounds("yogi:lr=1,beta1=0.5,beta2=0.75,tau=0.1", 2, 0.5) == pytest.approx(expected, abs=1e-12)


def test_clusters_have_moments_of_their_own_and_new_ones_begin_with_none() -> None:
    optimizer, one = ServerOptimizer.parse("avgm:momentum=0.5"), torch.ones(1, dtype=torch.float64)

    def step(cluster: str, update: Tensor = one) -> float:
        return float(optimizer.direction(cluster, update, torch.tensor([True]))[0])

    assert [step("a"), step("a"), step("b")] == [1, 1.5, 1]
    # A round without participants moves neither the model nor the moments.
    assert step("a", torch.zeros(1, dtype=torch.float64)) == 0
    assert step("b") == 1.5


def test_a_copy_of_the_moments_is_not_changed_by_later_rounds() -> None:
    optimizer, one = ServerOptimizer.parse("adam"), torch.ones(1, dtype=torch.float64)
    optimizer.direction("0", one, torch.tensor([True]))
    kept = dict(optimizer.moments)
    before = kept["0"].second.clone()
    optimizer.direction("0", one, torch.tensor([True]))
    assert torch.equal(kept["0"].second, before)
