"""Layers that are not trained cost no gradient, and change nothing in those that are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from coterie.federation import Split
from coterie.trainers import LoopTrainer
from coterie.trainers.base import Training, TrainingJob
from coterie.trainers.batching import batches
from coterie.trainers.losses import softmax_loss


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 6), nn.Tanh(), nn.Linear(6, 4)
    ).double()


def images(n: int) -> Split:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 1, 6, 6, generator=generator, dtype=torch.float64)
    return Split(x, torch.randint(4, (n,), generator=generator))


@pytest.mark.parametrize("layers", [("6",), ("4", "6"), ("0",), ("0", "6"), ("4.bias",)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_trained_layers_are_those_of_torch_with_all_gradients(layers: tuple[str, ...], momentum: float) -> None:
    module, data = network(), images(11)
    trainer = LoopTrainer(module, softmax_loss, torch.float64)
    start = trainer.layout.read(module, torch.float64)
    training = Training(lr=0.1, epochs=2, batch_size=4, layers=layers, momentum=momentum)
    update = trainer.train([TrainingJob(data, start, 5)], training).vectors
    assert update is not None

    theirs = copy.deepcopy(module).train()
    trained = [
        p for name, p in theirs.named_parameters() if any(name == own or name.startswith(f"{own}.") for own in layers)
    ]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=momentum)
    for index in batches(len(data), training, 5):
        theirs.zero_grad()
        softmax_loss(theirs(data.x[index]), data.y[index]).backward()
        optimizer.step()
    assert torch.allclose(update[0], trainer.layout.read(theirs, torch.float64) - start, rtol=1e-10, atol=1e-12)


def test_no_gradient_is_computed_for_frozen_layers_and_all_again_afterwards() -> None:
    module, data = network(), images(11)
    trainer = LoopTrainer(module, softmax_loss, torch.float64)
    start = trainer.layout.read(module, torch.float64)
    trainer.grad.fill_(7.0)
    trainer.train([TrainingJob(data, start, 5)], Training(epochs=1, batch_size=4, layers=("6",), momentum=0.9))
    last = trainer.layout.select(("6",))[0]
    assert (trainer.grad[: last.start] == 7).all()
    assert not (trainer.grad[last] == 7).any()
    gradients, _ = trainer.gradient([data], start)
    convolution = trainer.layout.select(("0",))[0]
    assert gradients[0, convolution].abs().max() > 0


def test_layers_that_the_user_froze_stay_frozen() -> None:
    module = network()
    module[0].weight.requires_grad_(False)
    trainer = LoopTrainer(module, softmax_loss, torch.float64)
    start = trainer.layout.read(module, torch.float64)
    trainer.train([TrainingJob(images(5), start, 5)], Training(epochs=1, batch_size=4, layers=("6",)))
    for momentum in (0.0, 0.9):
        moved = trainer.train([TrainingJob(images(5), start, 5)], Training(batch_size=4, momentum=momentum)).vectors
        assert moved is not None
        assert [bool(moved[0, span].any()) for span in trainer.layout.select(("0.weight", "6"))] == [False, True]
    flags = {name: parameter.requires_grad for name, parameter in trainer.module.named_parameters()}
    assert [name for name, wanted in flags.items() if not wanted] == ["0.weight"]
