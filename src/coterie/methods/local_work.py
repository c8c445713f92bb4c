"""What clients make of a model, and what is averaged: trained models (IFCA's option II) or gradients (option I)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import PositiveInt
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.aggregation import WeightedSum
from coterie.methods.options import Parts, part
from coterie.methods.server import Server
from coterie.tasks import Gradient, Task, Train
from coterie.trainers.base import Training

AVERAGING = Parts("averaging")


@part(AVERAGING, "model")
class ModelAveraging:
    """Clients train as the schedule says; models are averaged."""

    gradients: ClassVar[bool] = False

    def check(self, server: Server) -> None:
        """Every way of training goes with it."""

    def training(self, t: int, server: Server) -> Training | None:
        """How a client works from its model."""
        return server.schedule.at(t)

    def task(self, model: Tensor, how: Training | None, seed: int) -> Task:
        """The work of a client that is sent one model."""
        return Gradient(model) if how is None else Train(model, how, seed)


@part(AVERAGING, "gradient")
class GradientAveraging(ModelAveraging):
    """Clients send a gradient; the server takes the step."""

    batch: PositiveInt | None = None
    """Samples that a client takes its gradient on; None is all of them."""
    divide_by: Literal["participants", "clients"] = "participants"
    """m, by which the sum of gradients is divided. Below full participation the paper does not say which: dividing by
    the participants keeps the size of a step, dividing by all clients shrinks it with the participation."""
    gradients: ClassVar[bool] = True

    def check(self, server: Server) -> None:
        """Refuse clients' optimisers, which would have no effect."""
        optimizer = server.schedule.at(1).optimizer
        if optimizer != "sgd":
            raise ConfigError(f"averaging=gradient sends gradients: clients take no steps, leave out {optimizer}")

    def training(self, t: int, server: Server) -> Training | None:
        """None is the gradient on all samples; on a batch it is a step of size one, which is the negative gradient."""
        return None if self.batch is None else Training(lr=1.0, steps=1, batch_size=self.batch)

    def rate(self, t: int, server: Server) -> float:
        """What a sum of the clients' vectors is multiplied by to be a step: γ, with the sign of what they send."""
        return (-1 if self.batch is None else 1) * server.schedule.at(t).lr

    def divisor(self, sums: Sequence[WeightedSum], weighting: str, server: Server) -> float:
        """m."""
        if self.divide_by == "clients":
            return sum(server.weight(client, weighting) for client in server.clients)
        return sum(total.weight for total in sums)
