"""A client's own fine-tuning of the model it was given."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from coterie.parameters import Layout
from coterie.tasks.base import ClientContext, Reply, ReplySchema, Task, training_jobs, updates_of
from coterie.tasks.evaluate import scores_schema
from coterie.tasks.train import with_private
from coterie.trainers.base import Trainer, Training


@dataclass(frozen=True)
class Personalise(Task):
    """Train from `model` `(d,)` on the client's own data, keep the result, and report both models' test results.

    The values `loss` and `accuracy` are pairs: before and after. The client's own `private` layers, if it has any, are
    part of the model; its state does not change.
    """

    model: Tensor
    training: Training
    seed: int
    private: tuple[str, ...] = ()
    part: str = "test"

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, scores_schema(2), part=self.part)

    def batch_key(self) -> Hashable:
        return Personalise, self.training, self.private, self.part

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        spans = trainer.layout.select(self.private)
        starts = [with_private(task.model, spans, context.state) for task, context in zip(tasks, contexts, strict=True)]
        updates = updates_of(trainer, training_jobs(tasks, contexts, starts), self.training)
        replies = []
        for context, start, update in zip(contexts, starts, updates, strict=True):
            split = context.client.part(self.part)
            losses, accuracies = trainer.evaluate([split], torch.stack([start, start + update]))
            values = {"loss": losses[0].tolist(), "accuracy": accuracies[0].tolist()}
            replies.append(Reply(context.client.id, len(split), values=values))
        return replies
