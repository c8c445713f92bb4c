"""Layers that keep their steps apart against the plain loop, in float64, and when they must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.federation import Split
from coterie.trainers import low_rank
from coterie.trainers.base import Training, TrainingJob
from coterie.trainers.loop import LoopTrainer, pool_before_relu
from coterie.trainers.losses import softmax_loss
from coterie.trainers.low_rank import FactoredLinear, apart, factor_layers, kept_rows, worth_keeping_apart


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(32, 24), nn.ReLU(), nn.Dropout(0.5), nn.Linear(24, 16, bias=False), nn.Linear(16, 5)
    )


def convolutional() -> nn.Module:
    features = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(4))
    return nn.Sequential(features, nn.Flatten(), nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 5))


def data(samples: int = 23) -> Split:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 2, 4, 4, generator=generator, dtype=torch.float64)
    return Split(x, torch.randint(5, (samples,), generator=generator))


def make_loop(make: Callable[[], nn.Module], large: int) -> LoopTrainer:
    torch.manual_seed(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(low_rank, "LARGE", large)
        return LoopTrainer(make(), softmax_loss, torch.float64)


def train(trainer: LoopTrainer, jobs: list[TrainingJob], training: Training) -> tuple[Tensor, Tensor]:
    """The updates `(jobs, d)` and the losses `(jobs,)`."""
    trained = trainer.train(jobs, training)
    assert trained.vectors is not None
    return trained.vectors, trained.losses


def close(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm()) <= 1e-10 * float(b.norm())


@settings(max_examples=15, deadline=None)
@given(
    make=st.sampled_from([perceptron, convolutional]),
    batch=st.integers(1, 7),
    steps=st.sampled_from([None, 0, 1, 6]),
    epochs=st.integers(1, 3),
    # With lr 0.1: none, little, enough to shrink the steps below the smallest scale, all of the weights, and beyond.
    weight_decay=st.sampled_from([0.0, 0.01, 5.0, 10.0, 12.0]),
    layers=st.sampled_from([(), ("last",), ("4",), ("4.weight",)]),
    seed=st.integers(0, 100),
)
def test_training_is_that_of_the_plain_loop(make, batch, steps, epochs, weight_decay, layers, seed) -> None:  # type: ignore[no-untyped-def]
    training = Training(0.1, epochs, steps, batch, weight_decay=weight_decay, layers=layers)
    plain, fast = make_loop(make, 10**9), make_loop(make, 1)
    assert not plain.factored
    assert len(fast.factored) >= 2
    jobs = [TrainingJob(data(), plain.flat.clone(), seed), TrainingJob(data(9), plain.flat * 0.9, seed)]
    expected, losses = train(plain, jobs, training)
    updates, seen = train(fast, jobs, training)
    assert all(close(a, b) for a, b in zip(updates, expected, strict=True))
    assert torch.allclose(seen, losses, rtol=1e-10)


def test_steps_are_written_into_the_weights_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = []
    write = FactoredLinear.write
    monkeypatch.setattr(FactoredLinear, "write", lambda layer: (ranks.append(layer.rank), write(layer)))
    fast = make_loop(lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 24), nn.Sigmoid(), nn.Linear(24, 5)), 500)
    assert list(fast.factored) == ["1.weight"]
    assert kept_rows(32, 24, 3) == 8  # sqrt(2 · 32 · 24 · 3 / (56 · 1.3)) = 7.96
    train(fast, [TrainingJob(data(21), fast.flat.clone(), 0)], Training(batch_size=3))
    assert ranks == [9, 9, 3]


def test_the_best_number_of_rows_to_keep_has_the_least_cost() -> None:
    inputs, outputs, rows = 3136, 2048, 10

    def cost(kept: int) -> float:
        return kept * (inputs + outputs) * (1 + rows / low_rank.PRODUCTS) + 2 * inputs * outputs * rows / kept

    assert kept_rows(inputs, outputs, rows) == min(range(1, 1000), key=cost)


def test_a_layer_that_is_used_twice_in_a_step_adds_both_gradients() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, 6, bias=False).double()
    layer = FactoredLinear(linear)
    start = linear.weight.detach().clone()
    x = torch.randn(4, 2, 6, dtype=torch.float64)
    training = Training(lr=0.1)
    weight = start.clone().requires_grad_()
    with apart([layer]):
        for _ in range(2):
            layer(layer(x).tanh()).square().sum().backward()
            layer.step(training)
    for _ in range(2):
        (((x @ weight.t()).tanh() @ weight.t()).square().sum()).backward()
        assert weight.grad is not None
        weight = (weight - 0.1 * weight.grad).detach().requires_grad_()
    assert linear.weight.grad is None
    assert close(linear.weight.detach() - start, weight.detach() - start)


def test_a_training_that_breaks_off_leaves_a_plain_layer() -> None:
    fast = make_loop(perceptron, 1)
    layers = list(fast.factored.values())
    before = fast.flat.clone()

    def break_off() -> None:
        with apart(layers):
            layers[0](torch.ones(2, 32, dtype=torch.float64)).sum().backward()
            layers[0].step(Training())
            assert layers[0].rank == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        break_off()
    assert torch.equal(fast.flat, before)
    assert not layers[0].apart
    assert layers[0].rank == 0


@pytest.mark.parametrize(
    "training",
    [
        Training(batch_size=3, momentum=0.5),
        Training(batch_size=3, proximal=0.5),
        Training(batch_size=None),
    ],
)
def test_other_steps_than_few_small_plain_ones_are_made_on_the_weights(training: Training) -> None:
    plain, fast = make_loop(perceptron, 10**9), make_loop(perceptron, 1)
    assert not any(worth_keeping_apart(layer, training, 23) for layer in fast.factored.values())
    job = TrainingJob(data(), plain.flat.clone(), 4)
    for a, b in zip(train(fast, [job], training), train(plain, [job], training), strict=True):
        assert torch.equal(a, b)


def test_frozen_layers_stay() -> None:
    fast = make_loop(perceptron, 1)
    updates, _ = train(fast, [TrainingJob(data(), fast.flat.clone(), 4)], Training(batch_size=3, layers=("4",)))
    moved = {name for name, update in fast.layout.unflatten(updates[0]).items() if update.abs().sum() > 0}
    assert moved == {"4.weight"}


def test_layers_whose_weights_may_be_used_in_other_ways_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_rank, "LARGE", 10)

    class Own(nn.Sequential):
        pass

    linear = nn.Linear(4, 4)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    heard = nn.Sequential(nn.Linear(4, 4))
    heard[0].register_forward_hook(lambda *_: None)
    listening = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    listening.register_forward_hook(lambda *_: None)
    fixed = nn.Sequential(nn.Linear(4, 4))
    fixed[0].weight.requires_grad_(False)
    small = nn.Sequential(nn.Linear(3, 3))
    others = [
        nn.Sequential(linear, nn.ReLU(), linear),
        tied,
        heard,
        listening,
        fixed,
        small,
        Own(nn.Linear(4, 4)),
        nn.Sequential(Own(nn.Linear(4, 4))),
        nn.Linear(4, 4),
    ]
    assert [factor_layers(module) for module in others] == [{}] * len(others)
    nested = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 3))
    names = [name for name, _ in nested.named_parameters()]
    assert set(factor_layers(nested)) == {"0.0.weight", "1.weight"}
    assert [name for name, _ in nested.named_parameters()] == names


@pytest.mark.bfloat16
def test_in_half_precision_such_a_layer_still_computes_in_full() -> None:
    torch.manual_seed(0)
    layer = FactoredLinear(nn.Linear(6, 3))
    x = torch.randn(4, 6).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), apart([layer]):
        outputs = layer(x)
        assert torch.allclose(outputs, x.float() @ layer.weight.float().t() + layer.bias, atol=1e-1)
    with apart([layer]):
        exact = layer(x.float())
    assert torch.equal(outputs, exact)


def test_pooling_before_relu_changes_no_bit() -> None:
    torch.manual_seed(0)
    # Whole numbers, so that windows have ties, zeros and nothing above zero in them.
    x = torch.randint(-2, 3, (3, 2, 7, 7)).double().requires_grad_()
    parts = nn.Sequential(nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)), nn.ReLU(), nn.MaxPool2d(2))
    outcomes = []
    for _ in range(2):
        outputs = parts(x)
        (gradient,) = torch.autograd.grad((outputs * torch.arange(1.0, outputs.numel() + 1).view_as(outputs)).sum(), x)
        outcomes.append((outputs, gradient))
        pool_before_relu(parts)
    assert isinstance(parts[0][0], nn.MaxPool2d)
    assert isinstance(parts[1], nn.MaxPool2d)
    assert torch.equal(outcomes[0][0], outcomes[1][0])
    assert torch.equal(outcomes[0][1], outcomes[1][1])


def test_relus_that_somebody_listens_to_stay_where_they_are() -> None:
    heard = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    heard[0].register_forward_hook(lambda *_: None)
    pool_before_relu(heard)
    assert isinstance(heard[0], nn.ReLU)
