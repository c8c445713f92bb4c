"""How requests are cut into blocks, and what the engine takes their work to be."""

from __future__ import annotations

import math
from importlib import import_module

import pytest
import torch
from torch import nn

from coterie.engines import LocalEngine
from coterie.engines.local import BLOCK_CLIENTS, BLOCK_NUMBERS, SUMMED, WORK_FOR_BLOCK, block_width
from coterie.federation import Client, Federation, Split
from coterie.runs.config import make_config
from coterie.tasks import Choose, Evaluate, Gradient, Train
from coterie.tasks.base import Request, Task
from coterie.trainers.base import Training

MLP = 159_010


def split(n: int) -> Split:
    return Split(torch.randn(n, 4), torch.zeros(n, dtype=torch.int64))


def test_little_work_is_one_block_and_much_work_is_many() -> None:
    assert block_width(20, MLP, True, summed=True, work=10**8) == 20
    assert block_width(20, MLP, True, summed=True, work=2.5 * WORK_FOR_BLOCK) == 10
    assert block_width(20, MLP, True, summed=True, work=100 * WORK_FOR_BLOCK) == 5
    assert block_width(1000, MLP, True, summed=True, work=0) == SUMMED


def test_vectors_keep_blocks_small_whatever_the_work() -> None:
    assert block_width(200, MLP, True, work=0) == BLOCK_NUMBERS // MLP
    assert block_width(200, MLP, True, vectors=False, work=0) == 200
    assert block_width(10**5, MLP, True, vectors=False, work=math.inf) == BLOCK_CLIENTS


@pytest.mark.parametrize("requests", [1, 19, 300, 10**5])
@pytest.mark.parametrize("summed", [True, False])
def test_much_work_and_clients_one_after_another_are_cut_as_ever(requests: int, summed: bool) -> None:
    for batched in (True, False):
        usual = block_width(requests, MLP, batched, summed=summed)
        assert usual == block_width(requests, MLP, batched, summed=summed, work=10**15)
        assert usual <= max(SUMMED, BLOCK_NUMBERS // MLP)
    assert block_width(requests, MLP, False, summed=summed, work=0) == block_width(requests, MLP, False, summed=summed)


@pytest.mark.parametrize(
    ("task", "passes"),
    [
        (Train(torch.zeros(1), Training(epochs=2, batch_size=10), 0), 3 * 2 * 20),
        (Train(torch.zeros(1), Training(steps=7, batch_size=None), 0), 3 * 7 * 20),
        (Train(torch.zeros(1), Training(steps=7, batch_size=50), 0), 3 * 7 * 20),
        (Evaluate(torch.zeros(4, 1)), 4 * 5),
        (Evaluate(torch.zeros(4, 1), part="validation"), 4 * 3),
        (Choose(torch.zeros(4, 1), Training(epochs=1, batch_size=None), 0), 4 * 20 + 3 * 20),
        (Gradient(torch.zeros(1)), 3 * 20),
    ],
)
def test_tasks_know_what_they_cost(task: Task, passes: int) -> None:
    assert task.cost(Client("a", split(20), split(3), split(5))) == passes


def test_an_evaluation_is_less_work_than_training() -> None:
    federation = Federation([Client(f"{i}", split(60), split(1), split(10)) for i in range(6)], 2)
    engine = LocalEngine(federation, lambda seed: nn.Sequential(nn.Linear(4, 2)))
    model = engine.initial_model(0)
    training = [Request(c, Train(model, Training(epochs=1), 0)) for c in engine.clients]
    evaluation = [Request(c, Evaluate(model[None])) for c in engine.clients]
    costs = [[request.task.cost(federation[request.client]) for request in some] for some in (training, evaluation)]
    assert engine._work(costs[0]) == 18 * engine._work(costs[1])
    assert [len(block.replies) for block in engine.run(evaluation)] == [6]


def test_a_run_is_put_together_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    assemble = import_module("coterie.runs.assemble")
    seen: list[int] = []
    monkeypatch.setattr(assemble, "fingerprint", lambda federation: str(seen.append(torch.get_num_threads())))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    assemble.assemble(make_config({"clients": 4, "samples": 20}))
    assert seen == [1]
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
