"""Loss, accuracy and other metrics of given models on a client's own data."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import ConfigError, did_you_mean
from coterie.federation import Client, Split
from coterie.metrics import METRICS, MetricFunction, measure
from coterie.parameters import Layout
from coterie.tasks.base import Array, ClientContext, Reduction, Reply, ReplyBlock, ReplySchema, Task, tensor_key
from coterie.tasks.train import with_private
from coterie.trainers.base import Trainer


@dataclass(frozen=True)
class Evaluate(Task):
    """Report the mean loss and accuracy of each of k models `(k, d)` on one part of the client's data.

    `metrics` names others to report beside them: known ones, or those of the trainer.
    """

    models: Tensor
    part: str = "test"
    private: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, scores_schema(len(self.models), self.metrics), part=self.part)

    def batch_key(self) -> Hashable:
        return Evaluate, self.part, self.private, self.metrics, tensor_key(self.models)

    def cost(self, client: Client) -> float:
        return float(len(self.models) * len(client.part(self.part)))

    def perform(
        self,
        tasks: Sequence[Evaluate],
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        data = [context.client.part(self.part) for context in contexts]
        spans = trainer.layout.select(self.private)
        if spans:
            # Every client has models of its own, so nothing is shared.
            rows = [
                self._scores(
                    [split], torch.stack([with_private(m, spans, context.state) for m in self.models]), trainer
                )
                for split, context in zip(data, contexts, strict=True)
            ]
            scores = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
        else:
            scores = self._scores(data, self.models, trainer)
        columns = {name: column.tolist() for name, column in scores.items()}
        replies = [
            Reply(context.client.id, len(split), values={name: column[i] for name, column in columns.items()})
            for i, (context, split) in enumerate(zip(contexts, data, strict=True))
        ]
        return ReplyBlock(replies, {})

    def _scores(self, data: Sequence[Split], models: Tensor, trainer: Trainer) -> dict[str, Tensor]:
        """Every metric by name `(clients, k)`."""
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
