"""IFCA's question to a client: which of k models fits you best? Then train that one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from torch import Tensor

from coterie.federation import Client, Split
from coterie.parameters import Layout
from coterie.tasks.base import (
    ClientContext,
    Number,
    Reduction,
    Reply,
    ReplyBlock,
    ReplySchema,
    Sent,
    Task,
    replies_to,
    tensor_key,
    train_clients,
    training_jobs,
)
from coterie.tasks.gradient import buffer_spans
from coterie.trainers.base import Trained, Trainer, Training


@dataclass(frozen=True)
class Choose(Task):
    """Choose the model `(k, d)` with the lowest training loss (ties to the lowest index), then work from it.

    With `training` the reply's vector is the update of local training, without it the gradient at the chosen model.
    `shared` lists spans (start, stop) of the vector that are equal in all k models.
    """

    models: Annotated[Tensor, Sent(once="shared")]
    training: Training | None
    seed: int
    shared: tuple[tuple[int, int], ...] = ()

    def schema(self, layout: Layout) -> ReplySchema:
        private = () if self.training else buffer_spans(layout)
        return ReplySchema(layout.size, {"loss": Number()}, len(self.models), private=private)

    def batch_key(self) -> Hashable:
        return Choose, tensor_key(self.models), self.training

    def cost(self, client: Client) -> float:
        return super().cost(client) + len(self.models) * len(client.train)

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        data = [context.client.train for context in contexts]
        choices = self._choose(data, trainer)
        if self.training is None:
            trained = Trained.of(*self._gradients(data, choices, trainer), trainer.layout)
        else:
            jobs = training_jobs(tasks, contexts, [self.models[choice] for choice in choices])
            trained = train_clients(jobs, contexts, trainer, self.training)
        return replies_to(contexts, trained, choices)

    def perform(
        self,
        tasks: Sequence[Self],
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        if reduce is None or self.training is None or self.keeps_state:
            return super().perform(tasks, contexts, trainer, reduce)
        choices = self._choose([context.client.train for context in contexts], trainer)
        groups = [c if group is None else group for c, group in zip(choices, reduce.groups, strict=True)]
        jobs = training_jobs(tasks, contexts, [self.models[choice] for choice in choices])
        trained = trainer.train(jobs, self.training, reduce._replace(groups=groups))  # sums form while clients train
        return ReplyBlock(replies_to(contexts, trained), trained.sums)

    def _choose(self, data: Sequence[Split], trainer: Trainer) -> list[int]:
        """The model of each client's lowest loss."""
        losses, _ = trainer.evaluate(data, self.models)
        # A model that has become NaN is never chosen, though argmin would take it for the lowest.
        choices: list[int] = losses.masked_fill(losses.isnan(), torch.inf).argmin(dim=1).tolist()
        return choices

    def _gradients(self, data: Sequence[Split], choices: Sequence[int], trainer: Trainer) -> tuple[Tensor, Tensor]:
        """Gradients `(clients, d)` at the chosen models, and their losses `(clients,)`."""
        vectors = torch.empty(len(data), trainer.layout.size, dtype=self.models.dtype)
        seen = torch.empty(len(data), dtype=self.models.dtype)
        for choice in set(choices):
            rows = [i for i, c in enumerate(choices) if c == choice]
            vectors[rows], seen[rows] = trainer.gradient([data[i] for i in rows], self.models[choice])
        return vectors, seen
