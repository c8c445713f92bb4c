"""Local training from one model, and sending the update: what FedAvg and most other methods ask for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from coterie.federation import Client
from coterie.parameters import Layout, gather, scatter, span_size
from coterie.tasks.base import (
    GRADIENT_COST,
    ClientContext,
    ClientState,
    Number,
    Reduction,
    Reply,
    ReplyBlock,
    ReplySchema,
    Sent,
    Task,
    reduced,
    replies_to,
    tensor_key,
    train_clients,
)
from coterie.tasks.personal import train_personal_models
from coterie.trainers.base import Trainer, Training, TrainingJob


def with_private(model: Tensor, spans: Sequence[slice], state: ClientState) -> Tensor:
    """The model a client really uses: the one it was sent, with its own private layers in place."""
    if not spans or "private" not in state:
        return model
    own = model.clone()
    scatter(own, spans, state["private"])
    return own


@dataclass(frozen=True)
class Train(Task):
    """Train from `model` on the client's own data and send the update.

    `private` layers start as in the initial model that is drawn from `init`, stay with the client, and are zero in the
    update; with `init` given they are never sent. With `assess` the client also reports `start_loss`, the loss of the
    model as it came on all of its training data. With `personal` it also trains a model of its own in that way, which
    stays with it whole (see `personal.py`).
    """

    model: Annotated[Tensor, Sent(without="private", drawn="init")]
    training: Training
    seed: int
    private: tuple[str, ...] = ()
    assess: bool = False
    init: int | None = None
    personal: Training | None = None

    def schema(self, layout: Layout) -> ReplySchema:
        values = {"loss": Number()} | ({"start_loss": Number()} if self.assess else {})
        return ReplySchema(layout.size, values, private=layout.select(self.private))

    def batch_key(self) -> Hashable:
        return Train, self.training, self.private, self.assess, self.personal

    def cost(self, client: Client) -> float:
        more = 0 if self.personal is None else self.personal.samples_seen(len(client.train))
        return super().cost(client) + GRADIENT_COST * more

    def perform(
        self,
        tasks: Sequence[Train],
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        if self.personal is not None:
            models, seeds = [task.model for task in tasks], [task.seed for task in tasks]
            train_personal_models(models, seeds, contexts, trainer, self.personal)
        spans = trainer.layout.select(self.private)
        jobs = [
            TrainingJob(context.client.train, with_private(task.model, spans, context.state), task.seed)
            for task, context in zip(tasks, contexts, strict=True)
        ]
        extra: dict[str, Sequence[Any]] = {"start_loss": _start_losses(jobs, trainer)} if self.assess else {}
        if not (spans or self.training.keep_optimizer):
            return replies_to(contexts, trainer.train(jobs, self.training, reduce), None, **extra)
        trained = train_clients(jobs, contexts, trainer, self.training)
        if spans and trained.vectors is not None:
            for row, job, context in zip(trained.vectors, jobs, contexts, strict=True):
                own = gather(row, spans) + gather(job.start, spans)
                if not torch.isfinite(own).all():
                    continue  # what is not finite stays in the update, where the engine sees it
                context.state["private"] = own
                for span in spans:
                    row[span] = 0
            norms = torch.linalg.vector_norm(trained.vectors[:, : trainer.layout.trainable], dim=1)
            trained = trained._replace(norms=norms)
        return reduced(replies_to(contexts, trained, None, **extra).replies, reduce)


def _start_losses(jobs: Sequence[TrainingJob], trainer: Trainer) -> list[float]:
    """The loss of each job's starting vector on all of its data; jobs that start from one vector together."""
    by_start: dict[Hashable, list[int]] = {}
    for i, job in enumerate(jobs):
        by_start.setdefault(tensor_key(job.start), []).append(i)
    losses = [0.0] * len(jobs)
    for rows in by_start.values():
        found, _ = trainer.evaluate([jobs[i].data for i in rows], jobs[rows[0]].start[None])
        for i, loss in zip(rows, found[:, 0].tolist(), strict=True):
            losses[i] = loss
    return losses


@dataclass(frozen=True)
class Collect(Task):
    """Send the `private` layers that the client has kept so far; one that has none sends those of `model`.

    With `shown` they are sent even where sums are secure.
    """

    model: Annotated[Tensor, Sent(without="private", drawn="init")]
    private: tuple[str, ...]
    init: int | None = None
    shown: bool = False

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(span_size(layout.select(self.private)), shown=self.shown)

    def cost(self, client: Client) -> float:
        return 0.0

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        own = context.state.get("private")
        vector = gather(self.model, trainer.layout.select(self.private)) if own is None else own.clone()
        return Reply(context.client.id, len(context.client.train), vector)
