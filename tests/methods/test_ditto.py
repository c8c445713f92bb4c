"""Ditto: the global model is FedAvg's, the personal one takes the steps of its equation and never leaves the client."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import coterie
from coterie.federation import Federation
from coterie.trainers.base import Training, TrainingJob
from coterie.trainers.batched import BatchedTrainer
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import softmax_loss
from coterie.trainers.recognition import plan_of

SMALL: dict[str, Any] = {
    "scenario": "digits-permuted", "clients": 6, "samples": 40, "groups": 2, "model": "mlp:hidden=8", "rounds": 3,
}  # fmt: skip


class Zero(nn.Linear):
    """A layer whose fresh weights are zero."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


def test_two_steps_worked_by_hand() -> None:
    """One weight, loss (v − y)², one full step of 0.1 a round, λ = 2, clients at y = 1 and y = 5.

    Both models start at w = 0. Round 1: v − 0.1 (2 (v − y) + 2 (v − w)) = 0.2 y, so v = 0.2 and 1; w becomes the mean
    of 0.2 and 1, 0.6. Round 2: v₁ = 0.2 − 0.1 (2 (0.2 − 1) + 2 (0.2 − 0.6)) = 0.44 and v₂ = 1 − 0.1 (−8 + 0.8) = 1.72;
    w = 0.6 + the mean of 0.08 and 0.88 = 1.08.
    """
    ones = torch.ones(4, 1)
    federation = Federation.from_tensors(
        {name: dict.fromkeys(("train", "test"), (ones, y * ones)) for name, y in (("a", 1.0), ("b", 5.0))},
        task="regression",
    )
    how: dict[str, Any] = {"rounds": 2, "lr": 0.1, "steps": 1, "batch_size": "full", "workers": 1}
    result = coterie.run("ditto:lam=2", federation, model=Zero(1, 1, bias=False), **how)
    assert result.models[0].tolist() == pytest.approx([1.08], abs=1e-6)
    assert result.vector_of("a").tolist() == pytest.approx([0.44], abs=1e-6)
    assert result.vector_of("b").tolist() == pytest.approx([1.72], abs=1e-6)


def test_the_global_model_is_fedavgs_and_without_pull_the_personal_ones_are_local_trainings() -> None:
    ditto, fedavg, local = (coterie.run(m, workers=1, **SMALL) for m in ("ditto:lam=0", "fedavg", "local"))
    assert torch.equal(ditto.models[0], fedavg.models[0])
    assert ditto.summary.bytes == fedavg.summary.bytes  # nothing is sent beside
    for row in local.clients:
        assert torch.equal(ditto.vector_of(row.client), local.vector_of(row.client))


def test_a_stronger_pull_leaves_personal_models_nearer_to_the_global_one_and_workers_change_nothing() -> None:
    def apart(result: Any) -> float:
        return sum(float((result.vector_of(row.client) - result.models[0]).norm()) for row in result.clients)

    weak, strong, two = (
        coterie.run(f"ditto:lam={lam}", workers=workers, **SMALL) for lam, workers in ((0.1, 1), (5, 1), (5, 2))
    )
    assert apart(strong) < 0.7 * apart(weak)
    assert torch.equal(strong.models[0], two.models[0])
    assert all(torch.equal(strong.vector_of(r.client), two.vector_of(r.client)) for r in strong.clients)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_fast_trainer_pulls_to_the_same_centre_as_the_loop(optimizer: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    federation = Federation.from_tensors(
        {f"c{i}": (torch.randn(20 + i, 5), torch.randint(0, 3, (20 + i,))) for i in range(3)}, classes=3
    )
    loop = LoopTrainer(module, softmax_loss, torch.float64)
    plan = plan_of(module, softmax_loss)
    fast = BatchedTrainer(module, plan, torch.float64)
    centre = torch.randn(loop.layout.size, dtype=torch.float64)
    jobs = [
        TrainingJob(c.train, torch.randn(loop.layout.size, dtype=torch.float64), 7, centre=centre) for c in federation
    ]
    how = Training(lr=0.05, epochs=2, batch_size=8, proximal=0.7, optimizer=optimizer)
    slow, quick = loop.train(jobs, how).vectors, fast.train(jobs, how).vectors
    torch.testing.assert_close(slow, quick, rtol=0, atol=1e-10)
    elsewhere = loop.train([job._replace(centre=None) for job in jobs], how).vectors
    assert slow is not None
    assert not torch.allclose(slow, elsewhere, atol=1e-3)
