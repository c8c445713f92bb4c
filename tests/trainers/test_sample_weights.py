"""Sample weights: by hand, and the fast paths against the plain loop in float64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.federation import Split
from coterie.privacy.masks import Mask, MaskedTrainer
from coterie.trainers import batched
from coterie.trainers.base import Reduction, Trainer, Training, TrainingJob
from coterie.trainers.batched import BatchedTrainer, Way
from coterie.trainers.loop import LoopTrainer
from coterie.trainers.losses import (
    LOSSES,
    Loss,
    absolute_loss,
    binary_loss,
    huber_loss,
    sample_losses,
    softmax_loss,
    squared_loss,
)
from coterie.trainers.recognition import plan_of

INPUTS = 12


def network(hidden: int, outputs: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.Tanh(), nn.Linear(hidden, outputs)).double()


def client(n: int, outputs: int, loss: Loss, generator: torch.Generator) -> Split:
    x = torch.randn(n, INPUTS, generator=generator, dtype=torch.float64)
    if loss is softmax_loss:
        return Split(x, torch.randint(outputs, (n,), generator=generator))
    if loss is binary_loss:
        return Split(x, torch.randint(2, (n, outputs), generator=generator))
    return Split(x, torch.randn(n, outputs, generator=generator, dtype=torch.float64))


def both(module: nn.Sequential, loss: Loss) -> tuple[LoopTrainer, BatchedTrainer]:
    plan = plan_of(module, loss)
    return LoopTrainer(module, loss, torch.float64), BatchedTrainer(module, plan, torch.float64)


def close(a: Tensor, b: Tensor) -> bool:
    assert a.shape == b.shape
    return bool(torch.allclose(a, b, rtol=1e-10, atol=1e-12))


@settings(max_examples=40, deadline=None)
@given(
    way=st.sampled_from(Way),
    loss=st.sampled_from([softmax_loss, squared_loss, absolute_loss, huber_loss, binary_loss]),
    sizes=st.lists(st.integers(1, 17), min_size=1, max_size=5),
    hidden=st.integers(1, 24),
    batch=st.sampled_from([None, 1, 3, 8]),
    steps=st.sampled_from([None, 1, 7]),
    extras=st.sampled_from([{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"proximal": 0.3}]),
    classes=st.sampled_from([None, "balanced"]),
    seed=st.integers(0, 10**6),
)
def test_weighted_training_is_that_of_the_loop(
    way: Way,
    loss: Loss,
    sizes: list[int],
    hidden: int,
    batch: int | None,
    steps: int | None,
    extras: dict[str, float],
    classes: str | None,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs = 3 if loss is softmax_loss else 1
    balanced = classes if loss is softmax_loss else None
    loop, fast = both(network(hidden, outputs, seed), loss)
    training = Training(lr=0.1, batch_size=batch, steps=steps, epochs=2, class_weights=balanced, **extras)
    start = loop.flat.clone()
    jobs = []
    for i, n in enumerate(sizes):
        weights = torch.rand(n, generator=generator, dtype=torch.float64)
        weights[weights < 0.2] = 0
        data = client(n, outputs, loss, generator)
        centre = torch.randn(len(start), generator=generator, dtype=torch.float64) if seed % 2 else None
        jobs.append(TrainingJob(data, start, 7 * i, weights=None if i == 2 else weights, centre=centre))
    full = batch is None or batch >= max(sizes)
    fits = way in (Way.STEPS, Way.SAMPLES) if full else way in (Way.STEPS, Way.BLOCKS, Way.SAMPLE_BLOCKS)
    reduce = Reduction([1 + i / 3 for i in range(len(jobs))], [i % 2 for i in range(len(jobs))])
    with pytest.MonkeyPatch.context() as patch:
        if fits and all(batch is None or n <= batch for n in sizes) == full:
            patch.setattr(batched, "choose_way", lambda plan, s, whole: way)
        found, summed = fast.train(jobs, training), fast.train(jobs, training, reduce)
    right, right_sums = loop.train(jobs, training), loop.train(jobs, training, reduce)
    assert found.vectors is not None
    assert right.vectors is not None
    assert close(found.vectors, right.vectors)
    assert close(found.losses, right.losses)
    for group, total in summed.sums.items():
        assert close(total, right_sums.sums[group])


def line(trainer: str) -> Trainer:
    """y = w x + b from w = 1, b = 0, under the squared error."""
    module = nn.Sequential(nn.Linear(1, 1)).double()
    with torch.no_grad():
        module[0].weight.fill_(1.0)
        module[0].bias.fill_(0.0)
    loop, fast = both(module, squared_loss)
    return loop if trainer == "loop" else fast


@pytest.mark.parametrize("trainer", ["loop", "batched"])
def test_a_step_by_hand(trainer: str) -> None:
    """Samples (1, 0), (2, 0), (3, 9): residuals 1, 2, −6; with weights 1, 1/2, 0 the loss is (1 + 2 + 0) / 3 = 1."""
    data = Split(torch.tensor([[1.0], [2.0], [3.0]]).double(), torch.tensor([[0.0], [0.0], [9.0]]).double())
    weights = torch.tensor([1.0, 0.5, 0.0]).double()
    job = TrainingJob(data, torch.tensor([1.0, 0.0]).double(), 0, weights=weights)
    trained = line(trainer).train([job], Training(lr=0.3, steps=1, batch_size=None))
    assert trained.losses.tolist() == pytest.approx([1.0], abs=1e-15)
    assert trained.vectors is not None
    # dw = (2/3) (1·1·1 + ½·2·2) = 2, db = (2/3) (1 + ½·2) = 4/3
    assert trained.vectors[0].tolist() == pytest.approx([-0.6, -0.4], abs=1e-15)


@pytest.mark.parametrize("trainer", ["loop", "batched"])
def test_a_centre_by_hand(trainer: str) -> None:
    """Weights of zero leave the proximal term alone: μ (θ − centre) = 0.5 · (1 − 3, 0 − 1)."""
    data = Split(torch.ones(2, 1).double(), torch.zeros(2, 1).double())
    start, centre = torch.tensor([1.0, 0.0]).double(), torch.tensor([3.0, 1.0]).double()
    job = TrainingJob(data, start, 0, weights=torch.zeros(2).double(), centre=centre)
    trained = line(trainer).train([job], Training(lr=0.1, steps=1, batch_size=None, proximal=0.5))
    assert trained.vectors is not None
    assert trained.vectors[0].tolist() == pytest.approx([0.1, 0.05], abs=1e-15)


@pytest.mark.parametrize("trainer", ["loop", "batched"])
def test_weights_of_one_change_nothing(trainer: str) -> None:
    loop, fast = both(network(5, 3, 1), softmax_loss)
    made: Trainer = loop if trainer == "loop" else fast
    data = client(9, 3, softmax_loss, torch.Generator().manual_seed(2))
    plain = TrainingJob(data, loop.flat.clone(), 3)
    training = Training(lr=0.2, epochs=2, batch_size=4)
    one, other = (made.train([job], training) for job in (plain, plain._replace(weights=torch.ones(9))))
    assert one.vectors is not None
    assert other.vectors is not None
    assert close(one.vectors, other.vectors)


def test_augmented_batches_take_samples_that_weigh_nothing() -> None:
    """Inputs are changed by draws for the whole batch, whatever its samples weigh."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).double()
    loop, fast = both(module, softmax_loss)
    generator = torch.Generator().manual_seed(4)
    data = Split(torch.rand(10, 1, 4, 4, generator=generator).double(), torch.randint(3, (10,), generator=generator))
    weights = torch.tensor([0.0, 1, 1, 0, 0.5, 1, 0, 0, 2, 1])
    job = TrainingJob(data, loop.flat.clone(), 5, weights=weights)
    training = Training(lr=0.1, epochs=2, batch_size=4, augment="flip,crop:1")
    one, other = loop.train([job], training), fast.train([job], training)
    assert one.vectors is not None
    assert other.vectors is not None
    assert close(one.vectors, other.vectors)


def test_a_mask_leaves_weights_and_centres_alone() -> None:
    _, fast = both(network(4, 3, 1), softmax_loss)
    mask = Mask.from_secret(7, fast.layout, signed=True)
    data = client(6, 3, softmax_loss, torch.Generator().manual_seed(2))
    start = torch.linspace(-1, 1, fast.layout.size).double()
    job = TrainingJob(data, start, 3, weights=torch.arange(6.0), centre=start.flip(0))
    hidden = job._replace(start=mask.hide(start), centre=mask.hide(start.flip(0)))
    training = Training(lr=0.2, epochs=1, batch_size=4, proximal=0.3)
    one, other = fast.train([job], training), MaskedTrainer(fast, mask).train([hidden], training)
    assert one.vectors is not None
    assert other.vectors is not None
    assert close(one.vectors, mask.reveal(other.vectors))


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_loss_of_each_sample_is_that_of_a_batch_of_one(name: str) -> None:
    loss = LOSSES[name]
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(5, 1 if name == "bce" else 4, generator=generator)
    targets = (
        torch.randint(4, (5,), generator=generator)
        if name == "cross-entropy"
        else torch.randint(2, (5, 1), generator=generator)
        if name == "bce"
        else torch.randn(5, 4, generator=generator)
    )
    alone = torch.stack([loss(o[None], y[None]) for o, y in zip(outputs, targets, strict=True)])
    assert torch.allclose(sample_losses(loss, outputs[None], targets)[0], alone, atol=1e-6)


def test_a_loss_of_ones_own_is_weighted_too() -> None:
    module = network(3, 1, 0)

    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        return squared_loss(outputs, targets)

    data = client(7, 1, squared_loss, torch.Generator().manual_seed(1))
    known, unknown = LoopTrainer(module, squared_loss, torch.float64), LoopTrainer(module, own, torch.float64)
    job = TrainingJob(data, known.flat.clone(), 0, weights=torch.linspace(0, 1, 7))
    training = Training(lr=0.1, epochs=2, batch_size=3)
    one, other = known.train([job], training), unknown.train([job], dataclasses.replace(training))
    assert one.vectors is not None
    assert other.vectors is not None
    assert close(one.vectors, other.vectors)
