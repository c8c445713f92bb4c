"""The plain loop that everything is measured against: the way most frameworks simulate federated learning.

One DataLoader per client, an nn.Module whose state_dict is sent and returned, an optim.SGD, one client after another in
one process with torch's default number of threads. Nothing here is slow on purpose; only the data is shared with the
engines.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from coterie import Split, Training
from coterie.trainers import Loss

Weights = dict[str, Tensor]


class PlainClient:
    """A client with a data set, and a module that is overwritten with the server's weights."""

    def __init__(self, data: Split, module: nn.Module, loss: Loss, training: Training) -> None:
        self.dataset = TensorDataset(data.x, data.y)
        self.module = module
        self.loss = loss
        self.training = training

    def __len__(self) -> int:
        return len(self.dataset)

    def train(self, weights: Weights, seed: int) -> Weights:
        """Train from the server's weights and return the new weights."""
        self.module.load_state_dict(weights)
        self.module.train()
        how = self.training
        optimizer = torch.optim.SGD(
            self.module.parameters(), lr=how.lr, momentum=how.momentum, weight_decay=how.weight_decay
        )
        size = how.batch_size or len(self)
        sampler = RandomSampler(self.dataset, generator=torch.Generator().manual_seed(seed))
        loader = DataLoader(self.dataset, batch_size=size, sampler=sampler)
        left = how.batches(len(self))
        while left:
            for x, y in loader:
                optimizer.zero_grad()
                loss = self.loss(self.module(x), y)
                loss.backward()
                optimizer.step()
                left -= 1
                if not left:
                    break
        return {name: value.detach().clone() for name, value in self.module.state_dict().items()}

    @torch.no_grad()
    def mean_loss(self, weights: Weights) -> float:
        """The mean loss of the server's weights on the client's training data."""
        self.module.load_state_dict(weights)
        self.module.eval()
        total = 0.0
        for x, y in DataLoader(self.dataset, batch_size=self.training.batch_size or len(self)):
            total += float(self.loss(self.module(x), y)) * len(y)
        return total / len(self)


class PlainServer:
    """FedAvg with one model, IFCA with several; `models` are the current weights."""

    def __init__(
        self,
        clients: Sequence[Split],
        architecture: Callable[[int], nn.Module],
        seeds: Sequence[int],
        loss: Loss,
        training: Training,
    ) -> None:
        # All clients use one module, one after another: copies would only make the loop slower.
        module = architecture(seeds[0])
        self.clients = [PlainClient(data, module, loss, training) for data in clients]
        self.models = [copy.deepcopy(architecture(seed).state_dict()) for seed in seeds]

    def round(self, participants: Iterable[int], seeds: Iterable[int]) -> None:
        """One round with the clients at these positions, each with the seed of its batches."""
        updated: list[list[tuple[Weights, float]]] = [[] for _ in self.models]
        for position, seed in zip(participants, seeds, strict=True):
            client = self.clients[position]
            choice = 0
            if len(self.models) > 1:
                losses = [client.mean_loss(weights) for weights in self.models]
                choice = losses.index(min(losses))
            weight = float(len(client)) if len(self.models) == 1 else 1.0  # IFCA's mean is uniform
            updated[choice].append((client.train(self.models[choice], seed), weight))
        self.models = [
            average(replies) if replies else before for before, replies in zip(self.models, updated, strict=True)
        ]


def average(replies: Sequence[tuple[Weights, float]]) -> Weights:
    """The weighted mean of several clients' weights, tensor by tensor; counters are those of the first."""
    total = sum(weight for _, weight in replies)
    mean: Weights = {}
    for name, first in replies[0][0].items():
        if not first.is_floating_point():
            mean[name] = first
            continue
        mean[name] = torch.zeros_like(first)
        for weights, weight in replies:
            mean[name] += weights[name] * (weight / total)
    return mean
