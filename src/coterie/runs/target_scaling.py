"""Real targets of tables: trained at mean 0 and deviation 1 as the inputs are, reported in the units they came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from coterie.federation import Client, Federation
from coterie.metrics import MetricFunction, measure
from coterie.trainers.losses import Loss, absolute_loss, squared_loss

if TYPE_CHECKING:
    from coterie.federation.tables import Table
    from coterie.methods import Info
    from coterie.runs.metrics import ClientScore
    from coterie.runs.records import Spread


@dataclass(frozen=True)
class TargetScaling:
    """The mean and the deviation of the targets over all clients' training rows; 0 and 1 leave them as they are."""

    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def of(cls, table: Table | None) -> TargetScaling:
        """The scaling that was fitted with a table; none without one."""
        return cls() if table is None else cls(table.label_mean, table.label_scale)

    @property
    def needed(self) -> bool:
        """Whether it changes anything."""
        return (self.mean, self.scale) != (0.0, 1.0)

    def to_standard(self, values: Tensor) -> Tensor:
        """Values in their units at mean 0 and deviation 1, computed in float64."""
        return ((values.double() - self.mean) / self.scale).to(values.dtype) if self.needed else values

    def to_units(self, values: Tensor) -> Tensor:
        """Values at mean 0 and deviation 1 in their units, computed in float64."""
        return (values.double() * self.scale + self.mean).to(values.dtype) if self.needed else values

    def federation(self, given: Federation) -> Federation:
        """The federation that is trained on."""
        return given.with_clients([self.client(client) for client in given]) if self.needed else given

    def client(self, client: Client) -> Client:
        """A client as it is trained on."""
        return client.with_targets(self.to_standard) if self.needed else client

    def module(self, trained: nn.Module) -> nn.Module:
        """The trained module with answers in the targets' units."""
        return Rescaled(trained, self).eval() if self.needed else trained

    def metrics(self, asked: dict[str, MetricFunction | None]) -> dict[str, MetricFunction | None]:
        """Known metrics (None) and those of the user's own by name, of values in their units."""
        return (
            {name: partial(metric_in_units, name, own, self) for name, own in asked.items()} if self.needed else asked
        )

    def loss_unit(self, loss: Loss | None) -> float:
        """What a loss of standard targets is multiplied by to be one of the targets; 1 where there is no such number.

        Huber's loss and a user's own are reported as they are trained, of targets of deviation 1.
        """
        if loss is None or loss is squared_loss:
            return self.scale**2
        return self.scale if loss is absolute_loss else 1.0


def metric_in_units(
    name: str, own: MetricFunction | None, scaling: TargetScaling, outputs: Tensor, targets: Tensor
) -> float:
    """A metric of standard outputs and targets `(n, ...)`, measured on both in their units."""
    outputs, targets = (scaling.to_units(values.double()) for values in (outputs, targets))
    return measure({name: own}, outputs, targets)[name]


class Rescaled(nn.Module):
    """A module whose answers are brought to the targets' units."""

    mean: Tensor
    scale: Tensor

    def __init__(self, trained: nn.Module, scaling: TargetScaling) -> None:
        super().__init__()
        self.trained = trained
        self.register_buffer("mean", torch.tensor(scaling.mean, dtype=torch.float64))
        self.register_buffer("scale", torch.tensor(scaling.scale, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Predictions in the targets' units."""
        outputs: Tensor = self.trained(x)
        return (outputs.double() * self.scale + self.mean).to(outputs.dtype)


def scores_in_units(scores: Sequence[ClientScore], unit: float) -> list[ClientScore]:
    """Clients' scores with the loss in the targets' units."""
    if unit == 1.0:
        return list(scores)
    return [replace(score, metrics={**score.metrics, "loss": unit * score.metrics["loss"]}) for score in scores]


def means_in_units(means: dict[str, Spread], unit: float) -> dict[str, Spread]:
    """Means over the clients with that of the loss in the targets' units."""
    loss = means.get("loss")
    if loss is None or loss.mean is None:
        return means
    return {**means, "loss": replace(loss, mean=unit * loss.mean)}


def info_in_units(info: Info, unit: float) -> Info:
    """What a method reports of a round, with the clusters' training losses in the targets' units."""
    clusters = [c if c.train_loss is None else replace(c, train_loss=unit * c.train_loss) for c in info.clusters]
    return replace(info, clusters=clusters)
