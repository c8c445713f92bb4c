"""Ways to serve a client after training, each judged on its validation data: shared models, and changes of its own.

What a client makes of a model for itself stays with it; the server says by which of its ways the client is served.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from coterie.federation import Client, Split
from coterie.parameters import Layout
from coterie.tasks.base import Array, ClientContext, Reply, ReplySchema, Task, training_jobs, updates_of
from coterie.tasks.halves import OFFSET_SCALES
from coterie.trainers.base import Trainer, Training
from coterie.trainers.losses import output_offset

SCALES = OFFSET_SCALES[1:]
"""How much is added of an output offset that was fitted on the client's training data."""
TRIED = "tried"
"""Where a client keeps the models `(ways, d)` that it made for itself, until one of them is chosen."""


@dataclass(frozen=True)
class TryToServe(Task):
    """Judge `models (m, d)`, and versions of the first that the client makes for itself, on its validation data.

    Its own are the first model with each of SCALES of an output offset, and the first model trained on its own data.
    Without `models` the client trains the last of its own further, and judges that against what it was. The reply holds
    the mean `loss` of every way, and in `error` the squared standard error, over samples, of how much each lowers the
    loss against the first; NaN where there is nothing to judge by.
    """

    models: Tensor
    training: Training
    seed: int

    @property
    def keeps_state(self) -> bool:
        return True

    @property
    def ways(self) -> int:
        """How many ways are judged."""
        return len(self.models) + len(SCALES) + 1 if len(self.models) else 2

    def schema(self, layout: Layout) -> ReplySchema:
        numbers = Array((self.ways,), finite=False)
        return ReplySchema(None, {"loss": numbers, "error": numbers}, part="validation")

    def batch_key(self) -> Hashable:
        return TryToServe, self.training

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        starts = [
            task.models[0] if len(task.models) else context.state[TRIED][-1]
            for task, context in zip(tasks, contexts, strict=True)
        ]
        updates = updates_of(trainer, training_jobs(tasks, contexts, starts), self.training)
        replies = []
        for task, context, start, update in zip(tasks, contexts, starts, updates, strict=True):
            trained = start + update if torch.isfinite(update).all() else start
            replies.append(task._judged(context, start, trained, trainer))
        return replies

    def _judged(self, context: ClientContext, start: Tensor, trained: Tensor, trainer: Trainer) -> Reply:
        if len(self.models):
            own = torch.cat([with_offsets(start, context.client.train, trainer), trained[None]])
            ways = torch.cat([self.models, own])
        else:
            ways = torch.stack([start, trained])
            own = torch.cat([context.state[TRIED], trained[None]])
        context.state[TRIED] = own
        return _scores(context.client, ways, trainer)


@dataclass(frozen=True)
class ServeBy(Task):
    """Be served by one of the models that the client made for itself, counted from 0; below zero: by none of them."""

    way: int

    @property
    def keeps_state(self) -> bool:
        return True

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema()

    def cost(self, client: Client) -> float:
        return 1.0

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        tried = context.state[TRIED]
        context.state.pop("private", None)
        if self.way >= 0:
            context.state["private"] = tried[self.way].clone()
        context.state[TRIED] = tried[:0]
        return Reply(context.client.id, len(context.client.train))


def with_offsets(model: Tensor, data: Split, trainer: Trainer) -> Tensor:
    """The model `(scales, d)` with each of SCALES of the output offset that explains the data best."""
    offset = output_offset(trainer.outputs(data, model[None]), data.y).reshape(1, -1)
    scales = torch.tensor(SCALES, dtype=offset.dtype)[:, None]
    return trainer.with_offsets(model, torch.nan_to_num(scales * offset, 0.0, 0.0, 0.0), data)


def _scores(client: Client, models: Tensor, trainer: Trainer) -> Reply:
    data = client.validation
    if not len(data):
        unknown = [math.nan] * len(models)
        return Reply(client.id, 0, values={"loss": unknown, "error": unknown})
    losses = trainer.losses_of(trainer.outputs(data, models), data.y).double()
    lowered = losses[:1] - losses
    error = lowered.var(1) / len(data) if len(data) > 1 else torch.full((len(models),), math.nan)
    return Reply(client.id, len(data), values={"loss": losses.mean(1).tolist(), "error": error.tolist()})
