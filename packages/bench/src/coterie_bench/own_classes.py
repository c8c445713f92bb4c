"""Networks as users write them, classes with a `forward` of their own, and the data that each is timed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie import Federation, Split
from coterie.randomness import torch_generator

TEST_SHARE = 5
"""One of this number of samples is for evaluation."""
CHARACTERS, LENGTH = 80, 40


class Mlp(nn.Module):
    """784-200-10, functional calls."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(784, 200), nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(F.relu(self.hidden(x.view(x.size(0), -1))))
        return outputs


class LeafCnn(nn.Module):
    """LEAF's network for FEMNIST."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.hidden, self.out = nn.Linear(3136, 2048), nn.Linear(2048, 62)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        outputs: Tensor = self.out(F.relu(self.hidden(x.flatten(1))))
        return outputs


class Recurrent(nn.Module):
    """Next character by an LSTM or a GRU."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 8)
        self.cells = kind(8, hidden, layers, batch_first=True)
        self.out = nn.Linear(hidden, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        values, _ = self.cells(self.embedding(x))
        outputs: Tensor = self.out(values[:, -1])
        return outputs


class Block(nn.Module):
    """Two convolutions with GroupNorm beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(2, outputs), nn.GroupNorm(2, outputs)])
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.shortcut(x))


class ResNet8(nn.Module):
    """Three blocks of 16, 32 and 64 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(2, 16)
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.first(x))))
        outputs: Tensor = self.out(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return outputs


class Transformer(nn.Module):
    """Next character by two layers of attention, 32 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(CHARACTERS, 32), nn.Parameter(torch.zeros(LENGTH, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, CHARACTERS)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.layers(self.embedding(x) + self.place)[:, -1])
        return outputs


@dataclass(frozen=True)
class OwnModel:
    """A network of the user's own and its federation: FedAvg in batches of 10, one epoch."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    """Shape of an input; of characters their number."""
    classes: int
    clients: int
    samples: int
    participation: float = 1.0
    twin: Callable[[], nn.Module] | None = None
    """The same network as a Sequential."""
    in_jax: bool = False

    def federation(self, seed: int) -> Federation:
        """Clients with random samples, of which some are for evaluation."""
        return Federation.from_tensors(
            [{"train": self._data(seed, i, "train"), "test": self._data(seed, i, "test")} for i in range(self.clients)],
            classes=self.classes,
        )

    def _data(self, seed: int, client: int, part: str) -> Split:
        generator = torch_generator(seed, "own classes", part, client)
        count = self.samples if part == "train" else max(1, self.samples // TEST_SHARE)
        y = torch.randint(self.classes, (count,), generator=generator)
        if self.classes == CHARACTERS:
            return Split(torch.randint(CHARACTERS, (count, *self.shape), generator=generator), y)
        return Split(torch.randn(count, *self.shape, generator=generator), y)


OWN_MODELS = {
    "mlp": OwnModel(
        Mlp,
        (1, 28, 28),
        10,
        100,
        600,
        0.2,
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)),
        in_jax=True,
    ),
    "logistic": OwnModel(
        lambda: nn.Linear(784, 10),
        (784,),
        10,
        100,
        600,
        0.2,
        lambda: nn.Sequential(nn.Linear(784, 10)),
        in_jax=True,
    ),
    "cnn": OwnModel(LeafCnn, (1, 28, 28), 62, 4, 100),
    "lstm": OwnModel(lambda: Recurrent(nn.LSTM, 64), (LENGTH,), CHARACTERS, 20, 60),
    "lstm-256": OwnModel(lambda: Recurrent(nn.LSTM, 256, 2), (LENGTH,), CHARACTERS, 5, 20),
    "gru": OwnModel(lambda: Recurrent(nn.GRU, 64), (LENGTH,), CHARACTERS, 20, 60),
    "resnet-8": OwnModel(ResNet8, (3, 32, 32), 10, 5, 30),
    "transformer": OwnModel(Transformer, (LENGTH,), CHARACTERS, 20, 60),
}
