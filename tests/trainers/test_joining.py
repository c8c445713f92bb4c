"""Evaluation in joined passes gives what evaluation client by client gives, and happens only where it must."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.federation import Split
from coterie.models import build
from coterie.trainers import LoopTrainer
from coterie.trainers.loop import EVALUATION_ROWS
from coterie.trainers.losses import Loss, softmax_loss, squared_loss

F64 = torch.float64


class OwnCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x))) + 1
        return self.head(x.mean((2, 3)))


class OwnLSTM(nn.Module):
    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(10, 4), nn.LSTM(4, 6, batch_first=batch_first)
        self.head = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(x))
        return self.head(states)


def images(n: int, seed: int) -> Split:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 16, 16, generator=generator, dtype=F64)
    return Split(x, torch.randint(10, (n,), generator=generator))


def texts(n: int, seed: int, length: int = 7) -> Split:
    text = torch.randint(10, (n, length + 1), generator=torch.Generator().manual_seed(seed))
    return Split(text[:, :-1].contiguous(), text[:, 1:].contiguous())


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Not a mean over samples."""
    return softmax_loss(outputs, targets).sqrt()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Split]]] = {
    "own cnn": (OwnCNN, images),
    "cnn-small": (lambda: build("cnn-small", (1, 16, 16), 10, 0), images),
    "resnet18": (lambda: build("resnet18:width=2", (1, 16, 16), 10, 0), images),
    "own lstm": (OwnLSTM, texts),
    "lstm": (lambda: build("lstm:hidden=4,embedding=3", (7,), 10, 0), texts),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("loss", [softmax_loss, own_loss])
def test_joined_passes_give_what_each_client_gives_by_itself(name: str, loss: Loss) -> None:
    torch.manual_seed(0)
    make, draw = MODELS[name]
    data = [draw(n, i) for i, n in enumerate([3, 0, 1, 600, 2, 40, 500])]
    trainer = LoopTrainer(make(), loss, F64, sample=data[0])
    assert trainer.joins
    models = torch.stack([trainer.flat, trainer.flat * 0.9])
    collected: dict[tuple[int, int], list[Tensor]] = {}
    joined = trainer.evaluate(data, models, lambda i, j, outputs: collected.setdefault((i, j), []).append(outputs))
    again = trainer.evaluate(data, models)
    trainer.joins = False
    apart = trainer.evaluate(data, models)
    for a, b, c in zip(joined, apart, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, equal_nan=True)
        assert torch.equal(a.nan_to_num(), c.nan_to_num())
    assert apart[0].isnan()[1].all()
    for (i, j), outputs in collected.items():
        torch.testing.assert_close(torch.cat(outputs), trainer.outputs(data[i], models[j : j + 1])[0])


def test_real_targets_have_a_loss_and_no_accuracy() -> None:
    torch.manual_seed(0)
    data = [Split(torch.randn(n, 1, 4, 4, dtype=F64), torch.randn(n, 1, dtype=F64)) for n in (3, 5)]
    module = nn.Sequential(nn.Conv2d(1, 1, 4), nn.Flatten())
    trainer = LoopTrainer(module, squared_loss, F64, sample=data[0])
    losses, accuracies = trainer.evaluate(data, trainer.flat[None])
    expected = [float(squared_loss(module.double()(split.x), split.y).detach()) for split in data]
    assert losses[:, 0].tolist() == pytest.approx(expected, rel=1e-12)
    assert accuracies.isnan().all()


def test_many_small_clients_take_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [images(2, i) for i in range(500)]
    trainer = LoopTrainer(OwnCNN(), softmax_loss, F64, sample=data[0])
    rows = []
    compute = trainer._outputs
    monkeypatch.setattr(trainer, "_outputs", lambda x: rows.append(len(x)) or compute(x))
    trainer.evaluate(data, trainer.flat[None])
    assert rows == [EVALUATION_ROWS, 1000 - EVALUATION_ROWS]


def test_samples_of_other_shapes_are_in_passes_of_their_own() -> None:
    data = [texts(2, 0), texts(2, 1), texts(2, 2, length=5)]
    trainer = LoopTrainer(OwnLSTM(), softmax_loss, F64, sample=data[0])
    assert trainer.joins
    joined = trainer.evaluate(data, trainer.flat[None])[0]
    alone = torch.cat([trainer.evaluate([split], trainer.flat[None])[0] for split in data])
    torch.testing.assert_close(joined, alone, rtol=1e-12, atol=1e-12)


class Mixing(nn.Module):
    """A module in which samples of a batch meet: the rule that they meet by is given."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.mix = nn.Conv2d(1, 10, 16), mix

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.conv(x).flatten(1))


def hooked() -> nn.Module:
    module = OwnCNN()
    module.conv.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: Mixing(lambda x: x - x.mean(0)),
        lambda: Mixing(lambda x: x / x.max()),
        lambda: Mixing(lambda x: x / x.shape[0]),
        lambda: Mixing(lambda x: x if x.sum() > -1e9 else -x),
        lambda: Mixing(lambda x: x.flip(0)),
        lambda: Mixing(lambda x: x[:1]),
        lambda: Mixing(lambda x: F.softmax(x, 0)),
        lambda: nn.Sequential(nn.Conv2d(1, 10, 16), nn.BatchNorm2d(10, track_running_stats=False), nn.Flatten()),
        hooked,
    ],
)
def test_samples_that_depend_on_each_other_are_not_joined(make: Callable[[], nn.Module]) -> None:
    assert not LoopTrainer(make(), softmax_loss, sample=images(1, 0)).joins


def test_a_recurrent_layer_that_takes_clients_for_time_is_not_joined() -> None:
    assert not LoopTrainer(OwnLSTM(batch_first=False), softmax_loss, sample=texts(2, 0)).joins
