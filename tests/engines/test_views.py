"""Views of the same numbers count as one tensor: they are sent to workers once, and their clients work together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.engines import LocalEngine, pool
from coterie.engines.buffers import TensorBuffer
from coterie.engines.ray_pool import _broadcast
from coterie.federation import Client, Federation, Split
from coterie.tasks import Choose, Evaluate, Gradient, Request, Task, Train
from coterie.tasks.base import tensor_key
from coterie.trainers.base import Training
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import softmax_loss

pytestmark = pytest.mark.usefixtures("many_blocks")
CLIENTS = 24


def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for i in range(CLIENTS):
        train = Split(torch.randn(6, 30, generator=generator), torch.randint(3, (6,), generator=generator))
        clients.append(Client(f"c{i}", train, train, train))
    return Federation(clients, 3)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 3))


def row(models: Tensor, i: int) -> Tensor:
    """A tensor of its own every time, made by indexing; the numbers are always the same in memory."""
    return models[i % 2]


def copy(models: Tensor, i: int) -> Tensor:
    return models[i % 2].clone()


def test_a_key_is_that_of_the_numbers_and_of_how_they_are_read() -> None:
    models = torch.arange(12.0).view(3, 4)
    keys = [tensor_key(models[1]), tensor_key(models[1]), tensor_key(models[1:2].view(-1)), tensor_key(models[1:][0])]
    assert len(set(keys)) == 1
    others = [models[0], models[1:2], models[1, :3], models[1].double(), models[:, 0], models.t()[0], models[1].clone()]
    assert tensor_key(models[1]) not in {tensor_key(other) for other in others}
    assert tensor_key(models) != tensor_key(models.t())
    assert tensor_key(models[0].expand(2, 4)) != tensor_key(models[:2])


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> list[TensorBuffer]:
    """All buffers that the pool fills in this process."""
    made: list[TensorBuffer] = []

    class Noted(TensorBuffer):
        def __init__(self, memory: Tensor, **options: Any) -> None:
            super().__init__(memory, **options)
            made.append(self)

    monkeypatch.setattr(pool, "TensorBuffer", Noted)
    return made


@pytest.mark.parametrize(("choose", "expected"), [(row, 2), (copy, CLIENTS)])
def test_rows_made_anew_are_written_once_for_all_workers(
    buffers: list[TensorBuffer], choose: Callable[[Tensor, int], Tensor], expected: int
) -> None:
    engine = LocalEngine(federation(), network, workers=2)
    models = torch.stack([engine.initial_model(1), engine.initial_model(2)])
    requests = [Request(c, Train(choose(models, i), Training(steps=1), i)) for i, c in enumerate(engine.clients)]
    try:
        replies = [reply for block in engine.run(requests) for reply in block.replies]
    finally:
        engine.close()
    assert len(replies) == CLIENTS
    vector = -(-4 * engine.layout.size // 64) * 64
    written = sum(buffer.used for buffer in buffers)
    assert expected * vector - 64 < written <= expected * vector


@pytest.mark.parametrize(("choose", "expected"), [(row, 2), (copy, 0)])
def test_rows_made_anew_are_broadcast_once_to_ray(choose: Callable[[Tensor, int], Tensor], expected: int) -> None:
    models = torch.randn(2, 1000)
    requests = [Request(str(i), Train(choose(models, i), Training(), i)) for i in range(8)]
    buffer = _broadcast([requests[start : start + 2] for start in range(0, 8, 2)])
    assert expected * 4000 <= buffer.used < expected * 4000 + 64 * max(expected, 1)


class Counting(LoopTrainer):
    """Notes how many clients each call serves."""

    def __init__(self) -> None:
        super().__init__(network(0), softmax_loss)
        self.served: list[int] = []

    def evaluate(self, data: Sequence[Split], models: Tensor) -> tuple[Tensor, Tensor]:
        self.served.append(len(data))
        return super().evaluate(data, models)

    def gradient(self, data: Sequence[Split], model: Tensor) -> tuple[Tensor, Tensor]:
        self.served.append(len(data))
        return super().gradient(data, model)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda models: Gradient(models[1]), [4]),
        (lambda models: Gradient(models[1].clone()), [1, 1, 1, 1]),
        (lambda models: Evaluate(models[1:]), [4]),
        (lambda models: Evaluate(models[1:].clone()), [1, 1, 1, 1]),
        (lambda models: Choose(models[:], Training(), 0), [4]),
    ],
)
def test_clients_with_views_of_the_same_model_work_together(
    make: Callable[[Tensor], Task], expected: list[int]
) -> None:
    data = federation().subset(["c0", "c1", "c2", "c3"])
    trainer = Counting()
    engine = LocalEngine(data, network)
    engine.trainer = trainer
    engine.batched = True  # blocks of several clients, though there are few
    models = torch.stack([engine.initial_model(1), engine.initial_model(2)])
    requests = [Request(client, make(models)) for client in data.ids]
    replies = [reply for block in engine.run(requests) for reply in block.replies]
    assert trainer.served == expected
    alone = [reply for request in requests for block in engine.run([request]) for reply in block.replies]
    assert [reply.values["loss"] for reply in replies] == [reply.values["loss"] for reply in alone]
