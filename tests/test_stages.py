"""FedCUAU's client work, step by step against the workbench."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from coterie.engines.loop import LoopBench
from coterie.federation import Client, Split
from coterie.losses import softmax_loss
from coterie.messages import Worksite
from coterie.parameters import gather, scatter
from coterie.stages import LayerUpdate, StagedTraining
from coterie.tasks import Train
from coterie.workbench import Job, Training

TRAINING = Training(lr=0.2, epochs=2, batch_size=8, proximal=0.1)


@pytest.fixture
def bench() -> LoopBench:
    torch.manual_seed(0)
    return LoopBench(
        nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
        softmax_loss,
    )


def site(number: int) -> Worksite:
    generator = torch.Generator().manual_seed(number)
    data = Split(torch.randn(20, 4, generator=generator), torch.randint(3, (20,), generator=generator))
    return Worksite(Client(f"c{number}", data, data, data), {})


def start_of(bench: LoopBench) -> tuple[Tensor, Tensor]:
    model = bench.flat.clone()
    width = len(gather(model, bench.layout.select("5")))
    return model, torch.randn(2, width, generator=torch.Generator().manual_seed(9))


def test_layers_of_a_cluster_learn_alone_on_what_the_client_has_just_trained(bench: LoopBench) -> None:
    model, specific = start_of(bench)
    here = site(1)
    (reply,) = StagedTraining(model, specific, ("5",), TRAINING, 7).perform(
        [StagedTraining(model, specific, ("5",), TRAINING, 7)], [here], bench
    )
    (base,), _ = bench.train([Job(here.client.train, model, 7)], TRAINING)
    assert reply.vector is not None
    assert torch.equal(reply.vector[: len(model)], base)
    places = bench.layout.select("5")
    for row, update in zip(specific, reply.vector[len(model) :].view(2, -1), strict=True):
        start = model + base
        scatter(start, places, row)
        (whole,), _ = bench.train([Job(here.client.train, start, 7)], replace(TRAINING, layers=("5",)))
        assert torch.equal(update, gather(whole, places))
        frozen = [span for span in bench.layout.complement(places) if span.start < bench.layout.trainable]
        assert not gather(whole, frozen).any()
        assert update.any()


def test_private_layers_learn_once_and_are_used_by_all(bench: LoopBench) -> None:
    model, _ = start_of(bench)
    specific = gather(model, bench.layout.select("3"))[None] + 0.5
    plain, staged = site(2), site(2)
    for _ in range(2):
        train = Train(model, TRAINING, 3, ("5",))
        task = StagedTraining(model, specific, ("3",), TRAINING, 3, ("5",))
        (expected,), (reply,) = train.perform([train], [plain], bench), task.perform([task], [staged], bench)
        assert expected.vector is not None
        assert reply.vector is not None
        assert torch.equal(reply.vector[: len(model)], expected.vector)
        assert torch.equal(plain.state["private"], staged.state["private"])
        start = model + expected.vector
        scatter(start, bench.layout.select("5"), plain.state["private"])
        scatter(start, bench.layout.select("3"), specific[0])
        (whole,), _ = bench.train([Job(plain.client.train, start, 3)], replace(TRAINING, layers=("3",)))
        assert torch.equal(reply.vector[len(model) :], gather(whole, bench.layout.select("3")))


def test_clients_of_different_clusters_are_worked_off_together_as_if_alone(bench: LoopBench) -> None:
    model, specific = start_of(bench)
    tasks = [StagedTraining(model, specific[i:], ("5",), TRAINING, 10 + i) for i in range(3)]
    sites = [site(i) for i in range(3)]
    together = tasks[0].perform(tasks, sites, bench)
    for task, one, reply in zip(tasks, sites, together, strict=True):
        (alone,) = task.perform([task], [one], bench)
        assert alone.vector is not None
        assert reply.vector is not None
        assert torch.equal(alone.vector, reply.vector)
        assert len(reply.vector) == len(model) + task.specific.numel()
        assert reply.up == 4 * (len(reply.vector) + 1)
        assert task.down(bench.layout) == 4 * len(reply.vector)


def test_a_layer_that_breaks_shows_in_the_norm(bench: LoopBench) -> None:
    model, specific = start_of(bench)
    specific[1, 0] = float("inf")
    task = StagedTraining(model, specific, ("5",), TRAINING, 0)
    (reply,) = task.perform([task], [site(0)], bench)
    assert reply.norm != reply.norm


def test_layer_update_sends_the_update_of_its_layers_without_buffers(bench: LoopBench) -> None:
    model, _ = start_of(bench)
    task = LayerUpdate(model, TRAINING, 4, ("1", "5"))
    (reply,) = task.perform([task], [site(3)], bench)
    (whole,), _ = bench.train([Job(site(3).client.train, model, 4)], TRAINING)
    named = bench.layout.unflatten(whole)
    expected = torch.cat([named[name].flatten() for name in ("1.weight", "1.bias", "5.weight", "5.bias")])
    assert reply.vector is not None
    assert torch.equal(reply.vector, expected)
    assert reply.up == 4 * len(expected)
    assert task.down(bench.layout) == 8
