"""IFCA's question to a client: which of k models fits you best? Then train that one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from coterie.federation import Client, Split
from coterie.parameters import Layout
from coterie.tasks.base import (
    Array,
    ClientContext,
    Number,
    Reduction,
    ReplyBlock,
    ReplySchema,
    Sent,
    Task,
    reduced,
    replies_to,
    tensor_key,
    train_clients,
)
from coterie.tasks.gradient import as_trained, buffer_spans
from coterie.trainers.base import Trainer, Training, TrainingJob


@dataclass(frozen=True)
class Choose(Task):
    """Choose the model `(k, d)` with the lowest training loss (ties to the lowest index), then work from it.

    With `training` the reply's vector is the update of local training, without it the gradient at the chosen model.
    `shared` lists spans (start, stop) of the vector that are equal in all k models. With `report` the reply also holds
    the `losses` under all k.
    """

    models: Annotated[Tensor, Sent(once="shared")]
    training: Training | None
    seed: int
    shared: tuple[tuple[int, int], ...] = ()
    report: bool = False

    def schema(self, layout: Layout) -> ReplySchema:
        k = len(self.models)
        values: dict[str, Number | Array] = {"loss": Number()}
        if self.report:
            values["losses"] = Array((k,), finite=False)
        return ReplySchema(layout.size, values, k, private=() if self.training else buffer_spans(layout))

    def batch_key(self) -> Hashable:
        return Choose, tensor_key(self.models), self.training, self.report

    def cost(self, client: Client) -> float:
        return super().cost(client) + len(self.models) * len(client.train)

    def perform(
        self,
        tasks: Sequence[Choose],
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        data = [context.client.train for context in contexts]
        losses, choices = self._choose(data, trainer)
        told = {"losses": losses.tolist()} if self.report else {}
        if self.training is None:
            trained = as_trained(*self._gradients(data, choices, trainer), trainer.layout)
            return reduced(replies_to(contexts, trained, choices, **told).replies, reduce)
        jobs = [
            TrainingJob(split, self.models[c], task.seed) for split, c, task in zip(data, choices, tasks, strict=True)
        ]
        if self.keeps_state:
            trained = train_clients(jobs, contexts, trainer, self.training)
            return reduced(replies_to(contexts, trained, choices, **told).replies, reduce)
        if reduce is not None:
            groups = [c if group is None else group for c, group in zip(choices, reduce.groups, strict=True)]
            trained = trainer.train(jobs, self.training, Reduction(reduce.weights, groups))
            return replies_to(contexts, trained, groups, **told)
        return replies_to(contexts, trainer.train(jobs, self.training), choices, **told)

    def _choose(self, data: Sequence[Split], trainer: Trainer) -> tuple[Tensor, list[int]]:
        """Losses `(clients, k)` and the model of each client's lowest one."""
        losses, _ = trainer.evaluate(data, self.models)
        # A model that has become NaN is nobody's choice, though argmin would take it for the lowest.
        choices: list[int] = losses.masked_fill(losses.isnan(), torch.inf).argmin(dim=1).tolist()
        return losses, choices

    def _gradients(self, data: Sequence[Split], choices: Sequence[int], trainer: Trainer) -> tuple[Tensor, Tensor]:
        """Gradients `(clients, d)` at the chosen models, and their losses `(clients,)`."""
        vectors = torch.empty(len(data), trainer.layout.size, dtype=self.models.dtype)
        seen = torch.empty(len(data), dtype=self.models.dtype)
        for choice in set(choices):
            rows = [i for i, c in enumerate(choices) if c == choice]
            vectors[rows], seen[rows] = trainer.gradient([data[i] for i in rows], self.models[choice])
        return vectors, seen
