"""The federated rounds that are timed: synthetic data of the papers' shapes, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from coterie import Federation, Method, Split, Training
from coterie.methods import CFL, IFCA, FedAvg
from coterie.models import build
from coterie.randomness import torch_generator

QUICK = 10
"""How many times fewer clients there are at quick scale."""
NEVER = 10**6
"""A smallest cluster that no workload can be split into."""
FEWEST = 2
"""The least number of clients in a round: both cores need one."""


@dataclass(frozen=True)
class Workload:
    """One kind of round: clients and their data, the network, and local training."""

    clients: int
    samples: int
    model: str
    shape: tuple[int, ...]
    """Shape of one input; for tokens, the length of the sequence."""
    classes: int
    training: Training
    k: int = 1
    """Models that every client chooses from: 1 is FedAvg, more is IFCA."""
    cfl: bool = False
    """CFL in place of FedAvg, before the first round in which it may split."""
    participation: float = 1.0
    tokens: bool = False
    regression: bool = False

    @property
    def participants(self) -> int:
        """Clients in one round."""
        return max(1, round(self.clients * self.participation))

    def quick(self) -> Workload:
        """The same with a tenth of the clients, each with as many samples."""
        fewest = round(FEWEST / self.participation)
        return replace(self, clients=max(min(self.clients, fewest), self.clients // QUICK))

    def federation(self, seed: int) -> Federation:
        """The clients, with all data for training; labels come from one linear teacher per group, of k groups."""
        pairs = [self.data(seed, i) for i in range(self.clients)]
        return Federation.from_tensors(pairs, splits=(1.0, 0.0, 0.0), classes=self.classes or None, name="synthetic")

    def data(self, seed: int, client: int) -> Split:
        """One client's samples, a function of the seed and its number."""
        generator = torch_generator(seed, "bench", client)
        if self.tokens:
            text = torch.randint(self.classes, (self.samples, self.shape[0] + 1), generator=generator)
            return Split(text[:, :-1].contiguous(), text[:, 1:].contiguous())
        x = torch.rand(self.samples, *self.shape, generator=generator)
        outputs = (x - 0.5).flatten(1) @ self._teacher(seed, client % self.k)
        return Split(x, outputs if self.regression else outputs.argmax(1))

    def _teacher(self, seed: int, group: int) -> Tensor:
        inputs = torch.Size(self.shape).numel()
        return torch.randn(inputs, max(self.classes, 1), generator=torch_generator(seed, "teacher", group))

    def architecture(self) -> Callable[[int], nn.Module]:
        """A function from a seed to the network."""
        return lambda seed: build(self.model, self.shape, self.classes, seed)

    def method(self) -> Method:
        """The method of the round."""
        if self.cfl:
            return CFL(rule=f"benefit(min_size={NEVER})")
        return FedAvg() if self.k == 1 else IFCA(k=self.k, init="random")


IFCA_STEPS = Training(lr=0.1, steps=10, batch_size=None)
FEW = Training(lr=0.05, epochs=1, batch_size=10)
IMAGE = (1, 28, 28)
COLOUR = (3, 32, 32)

W1_200 = Workload(1200, 200, "mlp", IMAGE, 10, IFCA_STEPS, k=4)
W1_50 = Workload(4800, 50, "mlp", IMAGE, 10, IFCA_STEPS, k=4)
W2 = Workload(20, 2500, "cnn-cifar", COLOUR, 10, Training(lr=0.01, epochs=3, batch_size=100))
W3 = Workload(100, 600, "mlp", IMAGE, 10, FEW, participation=0.2)
W3_5 = replace(W3, training=replace(FEW, epochs=5))
DEMO = Workload(20, 259, "mlp", (8, 8), 10, Training(lr=0.1, epochs=3, batch_size=32))
CFL_MANY = Workload(200, 100, "mlp", IMAGE, 10, FEW, cfl=True)
W4 = Workload(20, 600, "cnn-leaf", IMAGE, 62, FEW)
W5 = Workload(10, 500, "resnet18", COLOUR, 10, Training(lr=0.01, epochs=1, batch_size=50))
W6 = Workload(20, 100, "lstm", (30,), 2000, Training(lr=0.5, epochs=1, batch_size=10), tokens=True)
OVERHEAD = Workload(10_000, 1, "linear", (10,), 0, Training(lr=0.01, steps=1, batch_size=None), regression=True)
