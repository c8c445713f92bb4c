"""IFCA's question where even the choice is hidden: replies of one shape whatever a client chose, made for secure sums.

Each reply is a vector with a block for every model and zeros in all blocks but the chosen one's. The server asks for
sums of them only. A client keeps its choice to itself, in its state under the name `kept`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from coterie.federation import Client
from coterie.parameters import Layout
from coterie.tasks.base import (
    ClientContext,
    Reply,
    ReplySchema,
    Task,
    tensor_key,
    train_clients,
    training_jobs,
)
from coterie.tasks.evaluate import Evaluate
from coterie.trainers.base import Trainer, Training


@dataclass(frozen=True)
class CountChoice(Task):
    """Choose the model `(k, d)` with the lowest training loss, and keep the choice.

    The vector `(k + 1,)` has a one at the chosen model, and the loss there at its end; without `loss`, `(k,)` is all.
    """

    models: Tensor
    kept: str
    loss: bool = True

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(len(self.models) + self.loss, wide=self.loss, hides_norm=True)

    def batch_key(self) -> Hashable:
        return CountChoice, tensor_key(self.models), self.kept, self.loss

    def cost(self, client: Client) -> float:
        return float(len(self.models) * len(client.train))

    @property
    def keeps_state(self) -> bool:
        """It does: the choice."""
        return True

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        losses, _ = trainer.evaluate([context.client.train for context in contexts], self.models)
        replies = []
        for context, row in zip(contexts, losses, strict=True):
            choice = _lowest(row)
            context.state[self.kept] = torch.tensor([float(choice)])
            vector = torch.zeros(len(self.models) + self.loss)
            vector[choice] = 1.0
            if self.loss:
                vector[-1] = torch.nan_to_num(row[choice], posinf=2.0**30)
            replies.append(Reply(context.client.id, len(context.client.train), vector))
        return replies


@dataclass(frozen=True)
class TrainHidden(Task):
    """Train the model `(k, d)` that was chosen before, and send k blocks `(k · d,)`: the update, and zeros.

    All blocks are zero where the chosen model is not in `open`: fewer clients chose it than a sum may be of.
    """

    models: Tensor
    training: Training
    seed: int
    kept: str
    open: tuple[int, ...]

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(len(self.models) * layout.size, hides_norm=True)

    def batch_key(self) -> Hashable:
        return TrainHidden, tensor_key(self.models), self.training, self.kept, self.open

    @property
    def keeps_state(self) -> bool:
        """It does: the choice, where the client had lost it."""
        return True

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        choices = [kept_choice(context, self.models, self.kept, trainer) for context in contexts]
        jobs = training_jobs(tasks, contexts, [self.models[choice] for choice in choices])
        updates = train_clients(jobs, contexts, trainer, self.training).vectors
        assert updates is not None
        replies = []
        for context, choice, update in zip(contexts, choices, updates, strict=True):
            blocks = torch.zeros(len(self.models), trainer.layout.size, dtype=update.dtype)
            if choice in self.open:
                blocks[choice] = update
            replies.append(Reply(context.client.id, len(context.client.train), blocks.flatten()))
        return replies


@dataclass(frozen=True)
class ScoreHidden(Task):
    """Measure the model `(k, d)` that was chosen before on one part of the client's data.

    The vector `(2 · m,)` holds each metric (loss, accuracy and `metrics`), zero where there is none, then for each a
    one where there is one.
    """

    models: Tensor
    kept: str
    part: str = "test"
    metrics: tuple[str, ...] = ()

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(2 * (2 + len(self.metrics)), part=self.part, wide=True, hides_norm=True)

    def batch_key(self) -> Hashable:
        return ScoreHidden, tensor_key(self.models), self.kept, self.part, self.metrics

    def cost(self, client: Client) -> float:
        return float(len(client.part(self.part)))

    @property
    def keeps_state(self) -> bool:
        """It does: the choice, where the client had lost it."""
        return True

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        choice = kept_choice(context, self.models, self.kept, trainer)
        asked = Evaluate(self.models[choice : choice + 1], self.part, metrics=self.metrics)
        [reply] = asked.answers([asked], [context], trainer)
        values = [float(reply.values[name][0]) for name in ("loss", "accuracy", *self.metrics)]
        known = [not math.isnan(value) for value in values]
        vector = torch.tensor([value if there else 0.0 for value, there in zip(values, known, strict=True)])
        return Reply(context.client.id, reply.samples, torch.cat([vector, torch.tensor(known).float()]))


def kept_choice(context: ClientContext, models: Tensor, kept: str, trainer: Trainer) -> int:
    """The model that a client chose before; one that knows of no choice makes it now."""
    if kept not in context.state or int(context.state[kept]) >= len(models):
        losses, _ = trainer.evaluate([context.client.train], models)
        context.state[kept] = torch.tensor([float(_lowest(losses[0]))])
    return int(context.state[kept])


def _lowest(losses: Tensor) -> int:
    """The model with the lowest loss; one that has become NaN is never chosen."""
    return int(losses.masked_fill(losses.isnan(), torch.inf).argmin())
