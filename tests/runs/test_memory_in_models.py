"""How much memory a run takes beside its data, counted in copies of the model: bytes of tensors alive, not seconds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import coterie
from coterie import Federation

WIDTH, CLIENTS = 1200, 10
SLACK = 0.3
"""Copies of the model for what is worked on in pieces, and for samples: 65,536 numbers of 1.5 million are 0.04."""


class Wide(nn.Module):
    """A class that no faster trainer recognises."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(torch.sigmoid(self.second(torch.sigmoid(self.first(x)))))
        return outputs


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes of torch's that are alive at a time while `work` is done, beyond those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    alive = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            most = max(most, alive)
    return most


@pytest.mark.parametrize(
    ("method", "copies"),
    [
        # The model, the one after the round, and a sum in float64; and the trainer's own.
        ("fedavg", 4 + 1),
        # As many for each of three models, the model of the client at work, and the trainer's own.
        ("ifca:k=3,init=random", 4 * 3 + 2),
    ],
)
def test_a_run_needs_few_copies_of_the_model(method: str, copies: int) -> None:
    torch.manual_seed(0)
    federation = Federation.from_tensors([(torch.randn(10, 8), torch.arange(10) % 2) for _ in range(CLIENTS)])
    size = 4 * sum(p.numel() for p in Wide().parameters())

    def run() -> None:
        coterie.run(method, federation, model=Wide, rounds=2, lr=0.1, batch_size=5, workers=1)

    assert peak_bytes(run) / size <= copies + SLACK
