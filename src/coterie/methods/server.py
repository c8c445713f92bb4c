"""The server's desk: what a method may see of a federation (ids, sizes, replies) and the few things it can do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.engines.base import Engine, shares
from coterie.messages import Due, Order, Reply, Task
from coterie.randomness import derive, numpy_generator
from coterie.tasks import Train
from coterie.workbench import Training


class Schedule(Protocol):
    """How local training changes over the rounds."""

    def at(self, t: int) -> Training:
        """The training of round `t`, counted from 1."""
        ...


@dataclass
class Ledger:
    """Bytes sent since it was last read."""

    down: int = 0
    up: int = 0

    def read(self) -> tuple[int, int]:
        """The bytes sent down and up, and start counting anew."""
        counted = (self.down, self.up)
        self.down = self.up = 0
        return counted


@dataclass
class Server:
    """A method's view of the federation. It holds no data and no hidden groups."""

    engine: Engine
    schedule: Schedule
    seed: int
    rounds: int
    participation: float = 1.0
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def clients(self) -> tuple[str, ...]:
        """Ids of all the known clients."""
        return self.engine.clients

    @property
    def samples(self) -> dict[str, int]:
        """Number of training samples of each client."""
        return self.engine.samples

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

    def initial_model(self, index: int = 0) -> Tensor:
        """Freshly initialised parameters `(d,)`; each index is an independent draw."""
        return self.engine.initial_model(derive(self.seed, "model", index))

    def seed_of(self, t: int, client: str, purpose: str = "batches") -> int:
        """The seed of a client's random draws in round `t`."""
        return derive(self.seed, purpose, t, client)

    def ask(self, orders: Sequence[Order]) -> Iterator[Reply]:
        """Send the orders and give the replies one by one in the same order, counting the bytes."""
        layout = self.engine.layout
        self.ledger.down += sum(order.task.down(layout) for order in orders)
        for block in self.engine.run(orders):
            for reply in block:
                self.ledger.up += reply.up
                yield reply

    def total(
        self, orders: Sequence[Order], tallies: Sequence[Tally], weighting: str, groups: Sequence[int] | None = None
    ) -> list[Reply]:
        """Send the orders and count every reply in the tally of its group; the replies come back without vectors.

        A reply's group is the one in `groups`, or that which it chose. The vectors are added up where they are made
        if the engine can do that, so that they need not travel one by one.
        """
        weights = [self.weight(order.client, weighting) for order in orders]
        bill = [Due(w, g) for w, g in zip(weights, groups or [0] * len(orders), strict=True)]
        due = {order.client: weight for order, weight in zip(orders, weights, strict=True)}
        self.ledger.down += sum(order.task.down(self.engine.layout) for order in orders)
        replies = []
        for share in shares(self.engine, orders, bill):
            for reply in share.replies:
                self.ledger.up += reply.up
                tallies[reply.group].note(reply, due[reply.client])
            for group, total in share.sums.items():
                tallies[group].total += total
            replies += share.replies
        return replies

    def ask_all(self, clients: Sequence[str], task: Task) -> Iterator[Reply]:
        """The same task for several clients."""
        return self.ask([Order(client, task) for client in clients])

    def train(
        self,
        clients: Sequence[str],
        model: Tensor,
        t: int,
        training: Training | None = None,
        private: tuple[str, ...] = (),
    ) -> Iterator[Reply]:
        """Let the clients train from one model with the round's training (or the one given)."""
        return self.ask(self.training_orders(clients, model, t, training, private))

    def training_orders(
        self,
        clients: Sequence[str],
        model: Tensor,
        t: int,
        training: Training | None = None,
        private: tuple[str, ...] = (),
    ) -> list[Order]:
        """Orders to train from one model with the round's training (or the one given)."""
        how = training or self.schedule.at(t)
        return [Order(c, Train(model, how, self.seed_of(t, c), private)) for c in clients]


class Tally:
    """Weighted sums of replies, kept in float64 and added in the order of arrival: O(d) memory for any number."""

    def __init__(self, size: int) -> None:
        self.total = torch.zeros(size, dtype=torch.float64)
        self.weight = 0.0
        self.count = 0
        self.max_norm = 0.0
        self.loss = 0.0

    def add(self, reply: Reply, weight: float) -> None:
        """Count one reply's vector in."""
        assert reply.vector is not None
        self.total.add_(reply.vector, alpha=weight)
        self.note(reply, weight)

    def note(self, reply: Reply, weight: float) -> None:
        """Count a reply whose vector is added to the total by other hands."""
        self.weight += weight
        self.count += 1
        self.max_norm = max(self.max_norm, reply.norm)
        self.loss += weight * float(reply.values["loss"])

    def mean(self) -> Tensor:
        """The weighted mean vector, float64 `(d,)`; zero when nothing was counted."""
        return self.total / self.weight if self.weight else self.total

    def mean_loss(self) -> float | None:
        """The weighted mean of the replies' losses."""
        return self.loss / self.weight if self.weight else None


def moved(model: Tensor, step: Tensor, lr: float = 1.0) -> Tensor:
    """`model + lr · step`, added in float64 and rounded once; a new tensor."""
    return (model.double() + lr * step).to(model.dtype)
