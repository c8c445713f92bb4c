"""FedCUAU's client work, step by step against the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from coterie.federation import Client, Split
from coterie.parameters import gather, scatter
from coterie.tasks import Train
from coterie.tasks.base import ClientContext, Reply, Task
from coterie.tasks.staged import LayerUpdate, StagedTraining
from coterie.tasks.wire import reply_bytes, task_bytes
from coterie.trainers.base import Training, TrainingJob
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import softmax_loss

TRAINING = Training(lr=0.2, epochs=2, batch_size=8, proximal=0.1)


@pytest.fixture
def trainer() -> LoopTrainer:
    torch.manual_seed(0)
    return LoopTrainer(
        nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
        softmax_loss,
    )


def context(number: int) -> ClientContext:
    generator = torch.Generator().manual_seed(number)
    data = Split(torch.randn(20, 4, generator=generator), torch.randint(3, (20,), generator=generator))
    return ClientContext(Client(f"c{number}", data, data, data), {})


def start_of(trainer: LoopTrainer) -> tuple[Tensor, Tensor]:
    model = trainer.flat.clone()
    width = len(gather(model, trainer.layout.select("5")))
    return model, torch.randn(2, width, generator=torch.Generator().manual_seed(9))


def replies_to(tasks: Sequence[Task], contexts: Sequence[ClientContext], trainer: LoopTrainer) -> list[Reply]:
    return tasks[0].perform(tasks, contexts, trainer).replies


def update_of(trainer: LoopTrainer, job: TrainingJob, training: Training) -> Tensor:
    vectors = trainer.train([job], training).vectors
    assert vectors is not None
    return vectors[0]


def test_layers_of_a_cluster_learn_alone_on_what_the_client_has_just_trained(trainer: LoopTrainer) -> None:
    model, specific = start_of(trainer)
    here = context(1)
    (reply,) = replies_to([StagedTraining(model, specific, ("5",), TRAINING, 7)], [here], trainer)
    base = update_of(trainer, TrainingJob(here.client.train, model, 7), TRAINING)
    assert reply.vector is not None
    assert torch.equal(reply.vector[: len(model)], base)
    places = trainer.layout.select("5")
    for row, update in zip(specific, reply.vector[len(model) :].view(2, -1), strict=True):
        start = model + base
        scatter(start, places, row)
        whole = update_of(trainer, TrainingJob(here.client.train, start, 7), replace(TRAINING, layers=("5",)))
        assert torch.equal(update, gather(whole, places))
        frozen = [span for span in trainer.layout.complement(places) if span.start < trainer.layout.trainable]
        assert not gather(whole, frozen).any()
        assert update.any()


def test_private_layers_learn_once_and_are_used_by_all(trainer: LoopTrainer) -> None:
    model, _ = start_of(trainer)
    specific = gather(model, trainer.layout.select("3"))[None] + 0.5
    plain, staged = context(2), context(2)
    for _ in range(2):
        train = Train(model, TRAINING, 3, ("5",))
        task = StagedTraining(model, specific, ("3",), TRAINING, 3, ("5",))
        (expected,), (reply,) = replies_to([train], [plain], trainer), replies_to([task], [staged], trainer)
        assert expected.vector is not None
        assert reply.vector is not None
        assert torch.equal(reply.vector[: len(model)], expected.vector)
        assert torch.equal(plain.state["private"], staged.state["private"])
        start = model + expected.vector
        scatter(start, trainer.layout.select("5"), plain.state["private"])
        scatter(start, trainer.layout.select("3"), specific[0])
        whole = update_of(trainer, TrainingJob(plain.client.train, start, 3), replace(TRAINING, layers=("3",)))
        assert torch.equal(reply.vector[len(model) :], gather(whole, trainer.layout.select("3")))


def test_clients_of_different_clusters_are_worked_off_together_as_if_alone(trainer: LoopTrainer) -> None:
    model, specific = start_of(trainer)
    tasks = [StagedTraining(model, specific[i:], ("5",), TRAINING, 10 + i) for i in range(3)]
    contexts = [context(i) for i in range(3)]
    together = replies_to(tasks, contexts, trainer)
    for task, one, reply in zip(tasks, contexts, together, strict=True):
        (alone,) = replies_to([task], [one], trainer)
        assert alone.vector is not None
        assert reply.vector is not None
        assert torch.equal(alone.vector, reply.vector)
        assert len(reply.vector) == len(model) + task.specific.numel()
        assert reply_bytes(reply, task.schema(trainer.layout)) == 4 * len(reply.vector) + 8
        assert task_bytes(task, trainer.layout) == 4 * len(reply.vector)


def test_a_layer_that_breaks_shows_in_the_norm(trainer: LoopTrainer) -> None:
    model, specific = start_of(trainer)
    specific[1, 0] = float("inf")
    task = StagedTraining(model, specific, ("5",), TRAINING, 0)
    (reply,) = replies_to([task], [context(0)], trainer)
    assert reply.norm != reply.norm


def test_layer_update_sends_the_update_of_its_layers_without_buffers(trainer: LoopTrainer) -> None:
    model, _ = start_of(trainer)
    task = LayerUpdate(model, TRAINING, 4, ("1", "5"))
    (reply,) = replies_to([task], [context(3)], trainer)
    whole = update_of(trainer, TrainingJob(context(3).client.train, model, 4), TRAINING)
    named = trainer.layout.unflatten(whole)
    expected = torch.cat([named[name].flatten() for name in ("1.weight", "1.bias", "5.weight", "5.bias")])
    assert reply.vector is not None
    assert torch.equal(reply.vector, expected)
    assert reply_bytes(reply, task.schema(trainer.layout)) == 4 * len(expected) + 8
    assert task_bytes(replace(task, init=6), trainer.layout) == 8
    assert task_bytes(task, trainer.layout) == 4 * len(model)  # without its seed the model itself must be sent
