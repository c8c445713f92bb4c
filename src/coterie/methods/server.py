"""A method's view of the federation: ids, sizes and replies, and the few things a server can do with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.engines.base import Engine, Traffic
from coterie.parameters import Layout
from coterie.randomness import derive, numpy_generator
from coterie.tasks import Reduction, Reply, Request, Task, Train
from coterie.trainers.base import Training


class Schedule(Protocol):
    """How local training changes over the rounds."""

    def at(self, t: int) -> Training:
        """The training of round `t`, counted from 1."""
        ...


class WeightedSum:
    """A weighted sum of replies in float64, added in the order of arrival: O(d) memory for any number of replies."""

    def __init__(self, size: int) -> None:
        self.total = torch.zeros(size, dtype=torch.float64)
        self.weight = 0.0
        self.count = 0
        self.max_norm = 0.0
        self.loss = 0.0

    def add(self, reply: Reply, weight: float) -> None:
        """Add one reply's vector, and note the reply."""
        assert reply.vector is not None
        self.total.add_(reply.vector, alpha=weight)
        self.note(reply, weight)

    def note(self, reply: Reply, weight: float) -> None:
        """Count a reply whose vector was added to the total elsewhere."""
        self.weight += weight
        self.count += 1
        self.max_norm = max(self.max_norm, reply.norm)
        self.loss += weight * float(reply.values["loss"])

    def mean(self) -> Tensor:
        """The weighted mean vector, float64 `(d,)`, a new tensor; zero when nothing was counted."""
        return self.total / self.weight if self.weight else self.total.clone()

    def mean_loss(self) -> float | None:
        """The weighted mean of the replies' losses."""
        return self.loss / self.weight if self.weight else None


class Aggregate(NamedTuple):
    """The weighted sum of each cluster, and the replies without their vectors."""

    sums: list[WeightedSum]
    replies: list[Reply]


@dataclass
class Server:
    """A method's view of the federation. It holds no data and no hidden groups.

    Example:
        A round of FedAvg::

            requests = server.training_requests(server.participants(t), model, t)
            [total], replies = server.aggregate(requests)
            model = apply_update(model, total.mean())
    """

    engine: Engine
    schedule: Schedule
    seed: int
    rounds: int
    participation: float = 1.0

    @property
    def clients(self) -> tuple[str, ...]:
        """Ids of all the known clients."""
        return self.engine.clients

    @property
    def samples(self) -> dict[str, int]:
        """Number of training samples of each client."""
        return self.engine.samples

    @property
    def layout(self) -> Layout:
        """Which numbers of a vector belong to which layer."""
        return self.engine.layout

    @property
    def traffic(self) -> Traffic:
        """The bytes sent so far."""
        return self.engine.traffic

    def weight(self, client: str, weighting: str) -> float:
        """A client's weight in a mean: its number of samples, or one."""
        return float(self.samples[client]) if weighting == "samples" else 1.0

    def participants(self, t: int) -> list[str]:
        """The clients that take part in round `t`, in the federation's order; at least one."""
        count = max(1, round(self.participation * len(self.clients)))
        if count >= len(self.clients):
            return list(self.clients)
        drawn = numpy_generator(self.seed, "participants", t).choice(len(self.clients), count, replace=False)
        return [self.clients[i] for i in np.sort(drawn)]

    def model_seed(self, index: int = 0) -> int:
        """The seed of initial model number `index`, from which a client can draw it too."""
        return derive(self.seed, "model", index)

    def initial_model(self, index: int = 0) -> Tensor:
        """Freshly initialised parameters `(d,)`; every index is an independent draw."""
        return self.engine.initial_model(self.model_seed(index))

    def seed_of(self, t: int, client: str, purpose: str = "batches") -> int:
        """The seed of a client's random draws in round `t`."""
        return derive(self.seed, purpose, t, client)

    def ask(self, requests: Sequence[Request]) -> Iterator[Reply]:
        """Send the requests and give the replies one by one in the same order; clients that fail are missing."""
        for block in self.engine.run(requests):
            yield from block.replies

    def ask_all(self, clients: Sequence[str], task: Task) -> Iterator[Reply]:
        """The same task for several clients."""
        return self.ask([Request(client, task) for client in clients])

    def aggregate(
        self,
        requests: Sequence[Request],
        weighting: str = "samples",
        groups: Sequence[int | None] | None = None,
        clusters: int = 1,
    ) -> Aggregate:
        """Send the requests and add up the replies' vectors by cluster, where they are made if the engine can do that.

        Args:
            requests: tasks whose replies have a vector `(d,)`, at most one per client.
            weighting: "samples" or "uniform", the weight of a client in its sum.
            groups: the cluster of each request, or None for the one that the client chooses; by default 0.
            clusters: how many sums there are.

        Returns:
            The sums by cluster, and the replies without their vectors in the order of the requests.
        """
        weights = [self.weight(request.client, weighting) for request in requests]
        weight_of = {request.client: weight for request, weight in zip(requests, weights, strict=True)}
        sums = [WeightedSum(self.layout.size) for _ in range(clusters)]
        replies = []
        for block in self.engine.run(requests, Reduction(weights, groups or [0] * len(requests))):
            for reply in block.replies:
                sums[reply.group].note(reply, weight_of[reply.client])
            for group, total in block.sums.items():
                sums[group].total += total
            replies += block.replies
        return Aggregate(sums, replies)

    def train(
        self,
        clients: Sequence[str],
        model: Tensor,
        t: int,
        training: Training | None = None,
        private: tuple[str, ...] = (),
    ) -> Iterator[Reply]:
        """Let the clients train from one model with the round's training (or the one given)."""
        return self.ask(self.training_requests(clients, model, t, training, private))

    def training_requests(
        self,
        clients: Sequence[str],
        model: Tensor | Mapping[str, Tensor],
        t: int,
        training: Training | None = None,
        private: tuple[str, ...] = (),
    ) -> list[Request]:
        """Requests to train with the round's training (or the one given).

        Args:
            clients: who is asked.
            model: the model `(d,)` to start from, one for all or one by client.
            t: the round.
            training: how to train; by default as the schedule says.
            private: layers that stay with the clients; they start as in `initial_model()`.
        """
        how = training or self.schedule.at(t)
        init = self.model_seed() if private else None
        models = dict.fromkeys(clients, model) if isinstance(model, Tensor) else model
        return [Request(c, Train(models[c], how, self.seed_of(t, c), private, init=init)) for c in clients]


def apply_update(model: Tensor, step: Tensor, lr: float = 1.0) -> Tensor:
    """`model + lr · step`, added in float64 and rounded once; a new tensor."""
    return (model.double() + lr * step).to(model.dtype)
