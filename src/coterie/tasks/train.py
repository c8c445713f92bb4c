"""Local training from one model, and sending the update: what FedAvg and most other methods ask for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

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
    replies_to,
    train_clients,
    training_jobs,
    updates_of,
)
from coterie.trainers.base import Trained, Trainer, Training, TrainingJob


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
    update; with `init` given they are never sent. With `personal` the client also trains a model of its own in that
    way, which stays with it whole.
    """

    model: Annotated[Tensor, Sent(without="private", drawn="init")]
    training: Training
    seed: int
    private: tuple[str, ...] = ()
    init: int | None = None
    personal: Training | None = None

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(layout.size, {"loss": Number()}, private=layout.select(self.private))

    def batch_key(self) -> Hashable:
        return Train, self.training, self.private, self.personal

    def cost(self, client: Client) -> float:
        more = 0 if self.personal is None else self.personal.samples_seen(len(client.train))
        return super().cost(client) + GRADIENT_COST * more

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        jobs = self._prepared(tasks, contexts, trainer)
        trained = train_clients(jobs, contexts, trainer, self.training)
        if self.private:
            trained = _without_private(trained, jobs, contexts, trainer.layout, self.private)
        return replies_to(contexts, trained)

    def perform(
        self,
        tasks: Sequence[Self],
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        if reduce is None or self.private or self.training.keep_optimizer:
            return super().perform(tasks, contexts, trainer, reduce)
        jobs = self._prepared(tasks, contexts, trainer)
        trained = trainer.train(jobs, self.training, reduce)  # sums form while clients train
        return ReplyBlock(replies_to(contexts, trained), trained.sums)

    def _prepared(
        self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer
    ) -> list[TrainingJob]:
        """Each client's training, after that of its personal model."""
        if self.personal is not None:
            _train_personal_models(tasks, contexts, trainer, self.personal)
        spans = trainer.layout.select(self.private)
        starts = [with_private(task.model, spans, context.state) for task, context in zip(tasks, contexts, strict=True)]
        return training_jobs(tasks, contexts, starts)


def _without_private(
    trained: Trained,
    jobs: Sequence[TrainingJob],
    contexts: Sequence[ClientContext],
    layout: Layout,
    private: tuple[str, ...],
) -> Trained:
    """The updates with zeros in the private layers, which the clients keep; updates that are not finite as they are."""
    spans = layout.select(private)
    assert trained.vectors is not None
    for row, job, context in zip(trained.vectors, jobs, contexts, strict=True):
        own = gather(row, spans) + gather(job.start, spans)
        if not torch.isfinite(own).all():
            continue  # what is not finite stays in the update, where the engine sees it
        context.state["private"] = own
        for span in spans:
            row[span] = 0
    return Trained.of(trained.vectors, trained.losses, layout)


def _train_personal_models(
    tasks: Sequence[Train], contexts: Sequence[ClientContext], trainer: Trainer, training: Training
) -> None:
    """Train every client's own model (Ditto's v) with a proximal term to the model `(d,)` that the client was sent.

    The client keeps v in its state and sends nothing of it. A client without one begins with the model it was sent; a
    training that ends in numbers that are not finite leaves v as it was.
    """
    own = [context.state.get("private", task.model) for context, task in zip(contexts, tasks, strict=True)]
    jobs = training_jobs(tasks, contexts, own)
    pulled = [job._replace(centre=task.model) for job, task in zip(jobs, tasks, strict=True)]
    for context, start, update in zip(contexts, own, updates_of(trainer, pulled, training), strict=True):
        after = start + update
        if torch.isfinite(after).all():
            context.state["private"] = after


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
