"""Loss, accuracy and other metrics of given models on a client's own data."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from coterie.errors import ConfigError, did_you_mean
from coterie.federation import Client, Split
from coterie.metrics import METRICS, MetricFunction, measure
from coterie.models.ensemble import mix_outputs
from coterie.parameters import Layout, span_size
from coterie.tasks.base import Array, ClientContext, Reply, ReplySchema, Task, tensor_key
from coterie.tasks.train import with_private
from coterie.trainers.base import Trainer


@dataclass(frozen=True)
class Evaluate(Task):
    """Report the mean loss and accuracy of each of k models `(k, d)` on one part of the client's data.

    `metrics` names others to report beside them: known ones, or those of the trainer. With `weights` (one for each
    model) the mixture of the models is reported in their place.
    """

    models: Tensor
    part: str = "test"
    private: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, scores_schema(1 if self.weights else len(self.models), self.metrics), part=self.part)

    def batch_key(self) -> Hashable:
        return Evaluate, self.part, self.private, self.metrics, bool(self.weights), tensor_key(self.models)

    def cost(self, client: Client) -> float:
        return float(len(self.models) * len(client.part(self.part)))

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        data = [context.client.part(self.part) for context in contexts]
        spans = trainer.layout.select(self.private)
        if spans:
            # Every client has models of its own, so nothing is shared.
            rows = [
                self._scores([split], self._own(context, spans, trainer.layout), trainer, [task])
                for split, context, task in zip(data, contexts, tasks, strict=True)
            ]
            scores = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
        else:
            scores = self._scores(data, self.models, trainer, tasks)
        columns = {name: column.tolist() for name, column in scores.items()}
        return [
            Reply(context.client.id, len(split), values={name: column[i] for name, column in columns.items()})
            for i, (context, split) in enumerate(zip(contexts, data, strict=True))
        ]

    def _own(self, context: ClientContext, spans: Sequence[slice], layout: Layout) -> Tensor:
        """The models with the client's private layers in place; of a mixture, one model if these are all there is."""
        given = self.models
        if self.weights and "private" in context.state and span_size(spans) == layout.size:
            given = given[:1]
        return torch.stack([with_private(model, spans, context.state) for model in given])

    def _scores(
        self, data: Sequence[Split], models: Tensor, trainer: Trainer, tasks: Sequence[Evaluate]
    ) -> dict[str, Tensor]:
        """Every metric by name `(clients, k)`, or `(clients, 1)` of the mixture that each client's task asks for."""
        if self.weights and len(models) > 1:
            return self._mixed_scores(data, models, trainer, tasks)
        if not self.metrics:
            losses, accuracies = trainer.evaluate(data, models)
            return {"loss": losses, "accuracy": accuracies}
        asked = {name: _function(name, trainer) for name in self.metrics}
        found = torch.full((len(asked), len(data), len(models)), float("nan"), dtype=torch.float64)
        pieces: dict[tuple[int, int], list[Tensor]] = {}

        def take(i: int, j: int, outputs: Tensor) -> None:
            """Measure a client's outputs as soon as they are all there, and keep them no longer."""
            mine = pieces.setdefault((i, j), [])
            mine.append(outputs)
            if sum(map(len, mine)) == len(data[i]):
                values = measure(asked, torch.cat(pieces.pop((i, j))), data[i].y).values()
                found[:, i, j] = torch.tensor(list(values), dtype=torch.float64)

        losses, accuracies = trainer.evaluate(data, models, take)
        return {"loss": losses, "accuracy": accuracies, **dict(zip(asked, found, strict=True))}

    def _mixed_scores(
        self, data: Sequence[Split], models: Tensor, trainer: Trainer, tasks: Sequence[Evaluate]
    ) -> dict[str, Tensor]:
        """Every metric by name `(clients, 1)` of the clients' mixtures of the models."""
        asked = {name: _function(name, trainer) for name in self.metrics}
        names = ["loss", "accuracy", *asked]
        found = torch.full((len(names), len(data), 1), float("nan"), dtype=torch.float64)

        def take(i: int, outputs: Tensor) -> None:
            y = data[i].y
            mixed = mix_outputs(outputs, torch.tensor(tasks[i].weights, dtype=torch.float64), y.is_floating_point())
            values = [
                float(trainer.losses_of(mixed[None], y).mean()),
                trainer.accuracy_of(mixed, y),
                *measure(asked, mixed, y).values(),
            ]
            found[:, i, 0] = torch.tensor(values, dtype=torch.float64)

        outputs_by_client(data, models, trainer, take)
        return dict(zip(names, found, strict=True))


def outputs_by_client(
    data: Sequence[Split], models: Tensor, trainer: Trainer, take: Callable[[int, Tensor], None]
) -> None:
    """Give `take` each client's position and the outputs `(k, n, ...)` of all models, as soon as they are all there.

    A client without samples is left out.
    """
    pieces: dict[int, list[list[Tensor]]] = {}

    def collect(i: int, j: int, outputs: Tensor) -> None:
        mine = pieces.setdefault(i, [[] for _ in models])
        mine[j].append(outputs)
        if all(sum(map(len, own)) == len(data[i]) for own in mine):
            take(i, torch.stack([torch.cat(own) for own in pieces.pop(i)]))

    trainer.evaluate(data, models, collect)


def _function(name: str, trainer: Trainer) -> MetricFunction | None:
    """The trainer's own function of that name; None for a known metric."""
    own = trainer.metrics.get(name)
    if own is None and name not in METRICS:
        raise ConfigError(
            f"this client knows no metric {name!r}: {did_you_mean(name, [*METRICS, *trainer.metrics])}; on a network "
            "give a metric of your own to client_app(metrics={…}) too"
        )
    return own


def scores_schema(k: int, metrics: Sequence[str] = ()) -> dict[str, Array]:
    """The losses, accuracies and other metrics of k models; NaN where the client has no such data."""
    found = {"loss": Array((k,), finite=False), "accuracy": Array((k,), minimum=0, maximum=1, finite=False)}
    for name in metrics:
        low, high = METRICS[name].limits if name in METRICS else (-math.inf, math.inf)
        found[name] = Array((k,), minimum=low, maximum=high, finite=False)
    return found
