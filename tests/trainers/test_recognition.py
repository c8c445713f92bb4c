"""What a module computes is recognised however it is written, and only where that is certain."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.federation import Split
from coterie.parameters import Layout
from coterie.trainers import BatchedTrainer, LoopTrainer, make_trainer
from coterie.trainers.base import Training, TrainingJob
from coterie.trainers.losses import Loss, softmax_loss, squared_loss
from coterie.trainers.pure_code import Unrecognised
from coterie.trainers.recognition import plan_of, suits

INPUTS, HIDDEN, CLASSES = 12, 5, 3


class Net(nn.Module):
    """A network of two layers; subclasses say how they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, CLASSES)


class Functional(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class Methods(Net):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.fc1(x.flatten(start_dim=1)).tanh())
        return out


class ViewOfSize(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), -1)
        return self.fc2(torch.relu(self.fc1(x)))


class ReshapeOfShape(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.tanh(self.fc1(torch.reshape(x, (x.shape[0], -1)))))


class ViewOfLength(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x.view(len(x), -1)), inplace=True))


class ViewOfWidth(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(x.view(-1, INPUTS))).view(-1, HIDDEN))


class LogSoftmax(Net):
    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.flatten(1)))), dim=1)


class NoDropout(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.fc1(x.flatten(1))), p=0.0, training=self.training)
        return self.drop(self.fc2(x))


class LastLayerFirst(nn.Module):
    """The order of the parameters is not that of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.middle = nn.Linear(HIDDEN, CLASSES), nn.Linear(4, HIDDEN, bias=False)
        self.first = nn.Linear(INPUTS, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(F.relu(self.first(x.flatten(1))))))


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sizes = (INPUTS, HIDDEN, 4)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(self.sizes, self.sizes[1:], strict=False))
        self.act, self.head = F.relu, nn.Linear(4, CLASSES)

    def activated(self, layer: nn.Module, x: Tensor) -> Tensor:
        return self.act(layer(x))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = self.activated(layer, x)
        return self.head(x)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU()))
        self.head = Tail()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Tail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(CLASSES, HIDDEN)), nn.Parameter(torch.randn(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, bias=self.bias)


class Branches(Net):
    """A branch on a constant, and one on the mode that changes nothing."""

    deep = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x.flatten(1))
        if self.deep:
            x = F.relu(x)
        return self.fc2(x) if self.training else self.fc2(x.view(-1, HIDDEN))


class Derived(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class OwnLinear(nn.Linear):
    pass


WAYS: list[Callable[[], nn.Module]] = [
    Functional,
    Methods,
    ViewOfSize,
    ReshapeOfShape,
    ViewOfLength,
    ViewOfWidth,
    LogSoftmax,
    NoDropout,
    LastLayerFirst,
    Listed,
    Nested,
    Branches,
    Derived,
    lambda: nn.Linear(INPUTS, CLASSES),
    lambda: OwnLinear(INPUTS, CLASSES),
    lambda: nn.Sequential(nn.Flatten(), Functional()),
]


def jobs_for(module: nn.Module, loss: Loss) -> list[TrainingJob]:
    generator = torch.Generator().manual_seed(4)
    flat = isinstance(module, nn.Linear)
    start = Layout.of(module).read(module, torch.float64)
    jobs = []
    for i, n in enumerate((7, 4, 9)):
        x = torch.randn(n, INPUTS, generator=generator, dtype=torch.float64)
        y = torch.randint(CLASSES, (n,), generator=generator)
        split = Split(x if flat else x.view(n, 3, 4), y if loss is softmax_loss else F.one_hot(y, CLASSES).double())
        jobs.append(TrainingJob(split, start, i))
    return jobs


@pytest.mark.parametrize("make", WAYS)
@pytest.mark.parametrize("loss", [softmax_loss, squared_loss])
def test_a_recognised_module_trains_as_in_the_loop(make: Callable[[], nn.Module], loss: Loss) -> None:
    torch.manual_seed(1)
    module = make().double()
    jobs = jobs_for(module, loss)
    if make is LogSoftmax and loss is not softmax_loss:
        with pytest.raises(Unrecognised, match="ends in log_softmax"):
            plan_of(module, loss)
        return
    fast, loop = make_trainer(module, loss, jobs[0].data, "float64", 2**20), LoopTrainer(module, loss, torch.float64)
    assert isinstance(fast, BatchedTrainer)
    assert fast.layout == loop.layout
    data, models = [job.data for job in jobs], torch.stack([loop.flat + 0.1, loop.flat])
    for training in (Training(batch_size=3, epochs=2), Training(batch_size=None, steps=6), Training(momentum=0.9)):
        a, b = fast.train(jobs, training), loop.train(jobs, training)
        assert a.vectors is not None
        assert b.vectors is not None
        torch.testing.assert_close(a.vectors, b.vectors, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(a.losses, b.losses, rtol=1e-12, atol=1e-12)
    for computed in zip(fast.evaluate(data, models), loop.evaluate(data, models), strict=True):
        torch.testing.assert_close(*computed, rtol=1e-12, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(fast.outputs(data[0], models), loop.outputs(data[0], models), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(fast.gradient(data, models[0])[0], loop.gradient(data, models[0])[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_sample_space_holds_for_any_order_of_the_parameters(batch_size: int | None) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(300))
            self.head = nn.Linear(300, CLASSES)
            self.weight = nn.Parameter(torch.randn(300, 400))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(F.linear(x, self.weight, self.bias)))

    torch.manual_seed(0)
    module = Wide().double()
    x = torch.randn(9, 400, dtype=torch.float64)
    job = TrainingJob(Split(x, torch.randint(CLASSES, (9,))), Layout.of(module).read(module, torch.float64), 0)
    fast = make_trainer(module, softmax_loss, job.data, "float64", 2**20)
    loop = LoopTrainer(module, softmax_loss, torch.float64)
    assert isinstance(fast, BatchedTrainer)
    training = Training(lr=0.01, batch_size=batch_size, epochs=12)
    way = fast._way(fast._samples(job, training), training, fast._trained(training))
    assert way.name.startswith("SAMPLE")
    a, b = fast.train([job], training), loop.train([job], training)
    assert a.vectors is not None
    assert b.vectors is not None
    torch.testing.assert_close(a.vectors, b.vectors, rtol=1e-10, atol=1e-12)
    summed = fast._sum([job, job], training, [1.0, 2.0])[0]
    torch.testing.assert_close(summed, 3 * b.vectors[0], rtol=1e-10, atol=1e-12)


COUNT = [0]


class CustomRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.relu()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return grad


def alike(forward: Callable[[Net, Tensor], Tensor], **more: object) -> nn.Module:
    """A network whose forward is the function given."""
    kind = type("Alike", (Net,), {"forward": forward, **more})
    module: nn.Module = kind()
    return module


def on_data(self: Net, x: Tensor) -> Tensor:
    return self.fc2(F.relu(self.fc1(x)) if x.sum() > 0 else self.fc1(x))


def on_mode(self: Net, x: Tensor) -> Tensor:
    return self.fc2(F.relu(self.fc1(x)) if self.training else self.fc1(x))


def on_chance(self: Net, x: Tensor) -> Tensor:
    return self.fc2(F.relu(self.fc1(x)) if random.random() < 2 else self.fc1(x))


def on_torchs_chance(self: Net, x: Tensor) -> Tensor:
    return self.fc2(F.relu(self.fc1(x)) if torch.rand(1) < 2 else self.fc1(x))


def on_rows(self: Net, x: Tensor) -> Tensor:
    return self.fc2(F.relu(self.fc1(x)) if len(x) > 3 else self.fc1(x))


def on_type(self: Net, x: Tensor) -> Tensor:
    return self.fc2(self.fc1(x) if isinstance(x, Tensor) else F.relu(self.fc1(x)))


def counts(self: Net, x: Tensor) -> Tensor:
    COUNT[0] += 1
    return self.fc2(self.fc1(x))


def keeps(self: Net, x: Tensor) -> Tensor:
    self.last = x
    return self.fc2(self.fc1(x))


def custom_autograd(self: Net, x: Tensor) -> Tensor:
    return self.fc2(CustomRelu.apply(self.fc1(x)))  # type: ignore[no-untyped-call]


def no_gradient(self: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = F.relu(self.fc1(x))
    return self.fc2(x)


def no_gradient_called(self: Net, x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    return self.fc2(self.fc1(x))


def detached(self: Net, x: Tensor) -> Tensor:
    return self.fc2(self.fc1(x).detach())


def catches(self: Net, x: Tensor) -> Tensor:
    x = self.fc1(x)
    try:
        if x.sum() > 0:
            x = F.relu(x)
    except Exception:
        pass
    return self.fc2(x)


def residual(self: Net, x: Tensor) -> Tensor:
    x = self.fc1(x)
    return self.fc2(x + F.relu(x))


def discards(self: Net, x: Tensor) -> Tensor:
    x = self.fc1(x)
    F.relu(x)
    return self.fc2(x)


def drops(self: Net, x: Tensor) -> Tensor:
    return self.fc2(F.dropout(self.fc1(x), 0.5, self.training))


def always_drops(self: Net, x: Tensor) -> Tensor:
    return self.fc2(F.dropout(self.fc1(x), 0.5))


def flattens_all(self: Net, x: Tensor) -> Tensor:
    return self.fc2(self.fc1(x.flatten()))


def splits_samples(self: Net, x: Tensor) -> Tensor:
    return self.fc2(self.fc1(x.view(-1, 2)))


def softmax_of_rows(self: Net, x: Tensor) -> Tensor:
    return F.log_softmax(self.fc2(self.fc1(x)), dim=0)


def scaled(self: Net, x: Tensor) -> Tensor:
    return self.fc2(self.fc1(x)) * math.pi


def optional(self: Net, x: Tensor, raw: Tensor | None = None) -> Tensor:
    return self.fc2(self.fc1(x) if raw is None else F.relu(self.fc1(x)))


def by_property(self: Net, x: Tensor) -> Tensor:
    return self.fc2(self.fc1(x)) if self.flag else self.fc2(F.relu(self.fc1(x)))  # type: ignore[attr-defined]


def skips(self: Net, x: Tensor) -> Tensor:
    return self.fc1(x)


def twice(self: Net, x: Tensor) -> Tensor:
    return self.square(self.square(x))  # type: ignore[operator]


def hooked_net() -> nn.Module:
    net = Functional()
    net.fc1.register_forward_hook(lambda *_: None)
    return net


def tied_net() -> nn.Module:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.square, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        forward = twice  # type: ignore[assignment]

    return Tied()


def patched_net() -> nn.Module:
    net = Functional()
    net.forward = lambda x: net.fc2(net.fc1(x))  # type: ignore[method-assign]
    return net


def normed_net() -> nn.Module:
    net = Functional()
    nn.utils.parametrizations.weight_norm(net.fc1)
    return net


def calls_itself() -> nn.Module:
    class Doubling(Functional):
        def __call__(self, x: Tensor) -> Tensor:
            return 2 * super().__call__(x)

    return nn.Sequential(Doubling())


@pytest.mark.parametrize(
    "forward",
    [
        *(on_data, on_mode, on_chance, on_torchs_chance, on_rows, on_type, counts, keeps, custom_autograd, no_gradient),
        *(no_gradient_called, detached, catches, residual, discards, drops, always_drops, flattens_all, splits_samples),
        *(softmax_of_rows, scaled, optional, by_property, skips),
    ],
)
def test_what_only_looks_like_a_chain_is_left_to_the_loop(forward: Callable[[Net, Tensor], Tensor]) -> None:
    before = COUNT[0]
    module = alike(forward, flag=property(lambda self: True))
    sample = Split(torch.zeros(1, INPUTS), torch.zeros(1, dtype=torch.int64))
    with suppress(Unrecognised):
        assert not suits(plan_of(module, softmax_loss), sample)
    assert COUNT[0] == before
    assert module.training


@pytest.mark.parametrize("make", [hooked_net, tied_net, patched_net, normed_net, calls_itself])
def test_modules_that_are_more_than_their_code_are_left_to_the_loop(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(Unrecognised):
        plan_of(make(), softmax_loss)


def test_a_decorated_forward_is_read_too() -> None:
    with pytest.raises(Unrecognised):
        plan_of(alike(torch.no_grad()(Functional.forward)), softmax_loss)


def test_the_trainer_says_how_it_trains_and_why() -> None:
    sample = Split(torch.zeros(1, INPUTS), torch.zeros(1, dtype=torch.int64))
    loop = make_trainer(alike(residual), softmax_loss, sample, "float32", 0)
    assert "one client after another" in loop.description
    assert "add" in loop.description
    assert make_trainer(Functional(), softmax_loss, sample, "float32", 0).description == "many clients in one product"
    with pytest.raises(Unrecognised, match="it has a Conv2d"):
        plan_of(nn.Sequential(nn.Conv2d(1, 1, 1)), softmax_loss)
