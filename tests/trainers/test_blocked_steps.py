"""Mini-batch steps in blocks and in sample space: the loop's results, by fewer and larger products."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.federation import Client, Federation, Split
from coterie.trainers import batched
from coterie.trainers.base import Reduction, Training, TrainingJob
from coterie.trainers.batched import BatchedTrainer, Way, choose_way
from coterie.trainers.batching import Samples
from coterie.trainers.blocked_steps import rows_in_block
from coterie.trainers.kernels import Plan, Stage
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import Loss, binary_loss, softmax_loss
from coterie.trainers.recognition import plan_of
from coterie.trainers.step_losses import ELEMENTWISE

INPUTS = 12
IN_BLOCKS = [Way.BLOCKS, Way.SAMPLE_BLOCKS]


def network(widths: list[int], bias: bool, activation: type[nn.Module], seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = [nn.Flatten()]
    for i, (inputs, outputs) in enumerate(zip([INPUTS, *widths], widths, strict=False)):
        parts += [activation()] * (i > 0) + [nn.Linear(inputs, outputs, bias=bias)]
    return nn.Sequential(*parts).double()


def client_data(sizes: list[int], outputs: int, loss: Loss, seed: int) -> list[Split]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for n in sizes:
        x = torch.randn(n, INPUTS, generator=generator, dtype=torch.float64)
        if loss is softmax_loss:
            made.append(Split(x, torch.randint(outputs, (n,), generator=generator)))
        elif loss is binary_loss:
            made.append(Split(x, torch.randint(2, (n, outputs), generator=generator).double()))
        else:
            made.append(Split(x, torch.randn(n, outputs, generator=generator, dtype=torch.float64)))
    return made


def close(a: Tensor, b: Tensor) -> bool:
    assert a.shape == b.shape
    return bool(torch.allclose(a, b, rtol=1e-10, atol=1e-12))


@settings(max_examples=30, deadline=None)
@given(
    way=st.sampled_from(IN_BLOCKS),
    widths=st.lists(st.integers(1, 24), min_size=1, max_size=3),
    bias=st.booleans(),
    activation=st.sampled_from([nn.ReLU, nn.Tanh, nn.Identity]),
    loss=st.sampled_from([softmax_loss, *ELEMENTWISE]),
    sizes=st.lists(st.integers(1, 17), min_size=1, max_size=6),
    batch=st.sampled_from([1, 2, 3, 5, 8]),
    steps=st.sampled_from([None, 0, 1, 7, 23]),
    epochs=st.integers(1, 3),
    trained=st.sampled_from(["all", "first weight", "first", "last"]),
    shared=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_updates_norms_and_sums_are_those_of_the_loop(
    way: Way,
    widths: list[int],
    bias: bool,
    activation: type[nn.Module],
    loss: Loss,
    sizes: list[int],
    batch: int,
    steps: int | None,
    epochs: int,
    trained: str,
    shared: bool,
    seed: int,
) -> None:
    module = network(widths, bias, activation, seed)
    layers = {"all": (), "first weight": ("1.weight",), "first": ("1",), "last": (str(len(module) - 1),)}[trained]
    training = Training(lr=0.1, batch_size=batch, steps=steps, epochs=epochs, layers=layers)
    plan = plan_of(module, loss)
    loop, fast = LoopTrainer(module, loss, torch.float64), BatchedTrainer(module, plan, torch.float64)
    start = loop.flat.clone()
    data = client_data(sizes, widths[-1], loss, seed)
    jobs = [TrainingJob(split, start if shared else start + i / 50, 7 * i) for i, split in enumerate(data)]
    reduce = Reduction([1 + i / 3 for i in range(len(jobs))], [i % 2 for i in range(len(jobs))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched, "choose_way", lambda plan, s, whole: way if whole else Way.BLOCKS)
        found, summed = fast.train(jobs, training), fast.train(jobs, training, reduce)
    right, right_sums = loop.train(jobs, training), loop.train(jobs, training, reduce)
    assert found.vectors is not None
    assert right.vectors is not None
    assert close(found.vectors, right.vectors)
    assert close(found.norms, right.norms)
    assert close(found.losses, right.losses)
    assert close(summed.losses, right_sums.losses)
    assert torch.allclose(
        summed.norms, right_sums.norms, rtol=1e-7, atol=1e-7
    )  # a root of a difference in sample space
    assert set(summed.sums) == set(right_sums.sums)
    for group, total in summed.sums.items():
        assert close(total, right_sums.sums[group])


def test_blocks_hold_several_batches_here() -> None:
    """The test above would say nothing if every block were one batch."""
    stage = Stage(INPUTS, 24, slice(0, 1), None, "")
    assert rows_in_block(stage, 3) == 12
    assert rows_in_block(stage, 8) == 8
    assert rows_in_block(stage, 50) == 50


@pytest.mark.parametrize("way", IN_BLOCKS)
def test_a_diverging_client_spoils_no_other(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    module = network([16, 3], True, nn.ReLU, 1)
    plan = plan_of(module, softmax_loss)
    fast = BatchedTrainer(module, plan, torch.float64)
    monkeypatch.setattr(batched, "choose_way", lambda plan, s, whole: way)
    data = client_data([7, 7, 7], 3, softmax_loss, 2)
    start = fast.layout.read(module, torch.float64)
    jobs = [TrainingJob(split, start, 0) for split in data]
    jobs[1] = TrainingJob(Split(data[1].x * 1e300, data[1].y), start, 0)
    training = Training(batch_size=2, epochs=3)
    everyone = fast.train(jobs, training).vectors
    alone = fast.train([jobs[0], jobs[2]], training).vectors
    assert everyone is not None
    assert alone is not None
    assert not torch.isfinite(everyone[1]).all()
    assert close(everyone[[0, 2]], alone)
    summed = fast.train(jobs, training, Reduction([1.0] * 3, [0] * 3))
    assert close(summed.sums[0], alone.sum(0))


def plan_with(*widths: int) -> Plan:
    stages, at = [], 0
    for inputs, outputs in pairwise(widths):
        stages.append(Stage(inputs, outputs, slice(at, at + inputs * outputs), None, "relu"))
        at += inputs * outputs
    return Plan(tuple(stages), softmax_loss, True, at)


@pytest.mark.parametrize(
    ("widths", "samples", "batch", "epochs", "way"),
    [
        ((784, 200, 10), 600, 10, 1, Way.BLOCKS),
        ((784, 200, 10), 6000, 10, 5, Way.BLOCKS),
        ((784, 200, 10), 600, 10, 5, Way.SAMPLE_BLOCKS),
        ((784, 200, 10), 60, 10, 1, Way.SAMPLE_BLOCKS),
        ((784, 200, 10), 600, 100, 1, Way.STEPS),
        ((64, 200, 10), 72, 32, 3, Way.STEPS),
        ((784, 10), 600, 10, 5, Way.STEPS),
        ((784, 200, 10), 50, 50, 1, Way.STEPS),
        ((784, 200, 10), 50, 50, 10, Way.SAMPLES),
    ],
)
def test_the_way_is_chosen_by_cost(widths: tuple[int, ...], samples: int, batch: int, epochs: int, way: Way) -> None:
    steps = Training(batch_size=batch, epochs=epochs).batches(samples)
    s = Samples(torch.empty(0), torch.empty(0), samples, steps, batch)
    assert choose_way(plan_with(*widths), s, True) == way


@pytest.mark.parametrize("extras", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"proximal": 0.1}, {"layers": ("3",)}])
def test_training_that_is_not_plain_takes_single_steps(extras: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Way:
        raise AssertionError("asked for a way")

    module = network([16, 3], True, nn.ReLU, 1)
    plan = plan_of(module, softmax_loss)
    fast = BatchedTrainer(module, plan, torch.float64)
    monkeypatch.setattr(batched, "choose_way", never)
    data = client_data([7], 3, softmax_loss, 2)
    fast.train([TrainingJob(data[0], fast.layout.read(module, torch.float64), 0)], Training(batch_size=2, **extras))


@pytest.mark.parametrize("epochs", [1, 6])
def test_results_are_the_same_bit_for_bit_with_any_number_of_workers(epochs: int) -> None:
    from coterie import run

    generator = torch.Generator().manual_seed(0)

    def split(n: int) -> Split:
        return Split(torch.randn(n, 400, generator=generator), torch.randint(3, (n,), generator=generator))

    clients = [Client(str(i), split(40 + 7 * i), split(5), split(5)) for i in range(11)]
    federation = Federation(clients, 3)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(400, 180), nn.ReLU(), nn.Linear(180, 3))
    results = [
        run("fedavg", federation, model=model, rounds=2, epochs=epochs, batch_size=8, lr=0.05, workers=workers)
        for workers in (1, 2, 3)
    ]
    for other in results[1:]:
        assert torch.equal(other.models[0], results[0].models[0])
