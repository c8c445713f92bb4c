"""The yardstick itself against torch's own optimizer, and the layouts and precisions it may use."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from coterie.engines import LocalEngine
from coterie.federation import Client, Federation, Split
from coterie.parameters import Layout
from coterie.trainers import BatchedTrainer, LoopTrainer
from coterie.trainers.base import Trainer, Training, TrainingJob
from coterie.trainers.batching import batches
from coterie.trainers.losses import softmax_loss


class Wrapped(nn.Module):
    """A network of the user's own, with a view that only works on images laid out channel by channel."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = features, head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x).view(len(x), -1))
        return out


def networks() -> tuple[nn.Module, Wrapped]:
    torch.manual_seed(3)
    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    head = nn.Linear(4 * 3 * 3, 5)
    return nn.Sequential(features, nn.Flatten(), head).double(), Wrapped(features, head)


def images(n: int) -> Split:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, 8, 8, generator=generator, dtype=torch.float64)
    return Split(x, torch.randint(5, (n,), generator=generator))


def train_one(trainer: Trainer, job: TrainingJob, training: Training) -> tuple[Tensor, float]:
    """The update `(d,)` and the mean loss seen."""
    trained = trainer.train([job], training)
    assert trained.vectors is not None
    return trained.vectors[0], float(trained.losses[0])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_training_is_that_of_torch_sgd(momentum: float, weight_decay: float) -> None:
    module, _ = networks()
    data = images(23)
    training = Training(lr=0.05, epochs=2, batch_size=5, momentum=momentum, weight_decay=weight_decay)
    trainer = LoopTrainer(module, softmax_loss, torch.float64)
    start = trainer.layout.read(module, torch.float64)
    update, mean_loss = train_one(trainer, TrainingJob(data, start, 9), training)
    plain = copy.deepcopy(module)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=momentum, weight_decay=weight_decay)
    seen = []
    for index in batches(23, training, 9):
        optimizer.zero_grad()
        loss = softmax_loss(plain(data.x[index]), data.y[index])
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
    expected = Layout.of(plain).read(plain, torch.float64) - start
    assert torch.allclose(update, expected, rtol=1e-10, atol=1e-13)
    assert mean_loss == pytest.approx(sum(seen) / len(seen), rel=1e-12)


def test_the_layout_of_images_changes_no_result_and_is_tried_on_modules_of_the_users_own() -> None:
    class Pooled(Wrapped):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(torch.flatten(self.features(x), 1))
            return out

    plain, viewed = networks()
    features, head = viewed.features, viewed.head
    sample = images(1)
    ours, pooled, own, unknown = (
        LoopTrainer(module, softmax_loss, torch.float64, sample=given)
        for module, given in (
            *((plain, sample), (Pooled(features, head), sample)),
            *((viewed, sample), (Pooled(features, head), None)),
        )
    )
    assert [t.channels_last for t in (ours, pooled, own, unknown)] == [True, True, False, False]
    job = TrainingJob(images(10), ours.flat.clone(), 1)
    expected, expected_loss = train_one(own, job, Training())
    for trainer in (ours, pooled):
        update, loss = train_one(trainer, job, Training())
        assert torch.allclose(update, expected, rtol=1e-10, atol=1e-13)
        assert loss == pytest.approx(expected_loss, rel=1e-10)


def test_trying_a_layout_leaves_the_model_as_it_was() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.drop = nn.Conv2d(3, 5, 8), nn.BatchNorm2d(5), nn.Dropout()

        def forward(self, x: Tensor) -> Tensor:
            return self.drop(self.norm(self.conv(x))).flatten(1)

    module = Normed()
    drawn = torch.random.get_rng_state()
    trainer = LoopTrainer(module, softmax_loss, sample=images(1))
    assert trainer.channels_last
    assert torch.equal(trainer.flat, trainer.layout.read(module))
    assert int(trainer.module.norm.num_batches_tracked) == 0  # type: ignore[arg-type, union-attr]
    assert torch.equal(torch.random.get_rng_state(), drawn)


def test_precision_chooses_the_numbers_and_the_trainer() -> None:
    data = images(12)
    train = Split(data.x.float(), data.y)
    federation = Federation([Client("a", train, train, train)], 5)

    def perceptron(seed: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 5))

    assert isinstance(LocalEngine(federation, perceptron).trainer, BatchedTrainer)
    assert LocalEngine(federation, perceptron, precision="float64").initial_model(0).dtype == torch.float64


@pytest.mark.bfloat16
def test_bf16_trains_roughly_as_float32_does() -> None:
    data = images(12)
    train = Split(data.x.float(), data.y)
    federation = Federation([Client("a", train, train, train)], 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # on a processor without such instructions
        half = LocalEngine(federation, lambda _: networks()[0].float(), precision="bf16")
    assert isinstance(half.trainer, LoopTrainer)
    exact = LocalEngine(federation, lambda _: networks()[0].float())
    job = TrainingJob(train, exact.initial_model(0), 1)
    rough, right = train_one(half.trainer, job, Training())[0], train_one(exact.trainer, job, Training())[0]
    assert 0 < float((rough - right).norm()) < 0.1 * float(right.norm())
