"""FedCUAU's two tasks for a client: one update of a fresh model, and training in stages."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
from torch import Tensor

from coterie.clustering import half_distances
from coterie.federation import Client, Split
from coterie.parameters import Layout, gather, scatter, span_size
from coterie.tasks.base import (
    ClientContext,
    Number,
    Reply,
    ReplySchema,
    Sent,
    Task,
    replies_to,
    updates_of,
)
from coterie.tasks.halves import halves_of
from coterie.tasks.train import Train, with_private
from coterie.trainers.base import Trained, Trainer, Training, TrainingJob


@dataclass(frozen=True)
class LayerUpdate(Task):
    """Train all layers of a freshly initialised `model` `(d,)` and send the update of the named layers only.

    A client draws the initial model from the seed `init` by itself, so that the seed is all that is sent to it. With
    `halves`, the seed of two halves of its data, it trains on each of them and sends both updates, one after the other.
    """

    model: Annotated[Tensor, Sent(drawn="init")]
    training: Training
    seed: int
    layers: str | tuple[str, ...] = "last"
    init: int | None = None
    halves: int | None = None

    def schema(self, layout: Layout) -> ReplySchema:
        updates = 1 if self.halves is None else 2
        return ReplySchema(updates * span_size(trainable_spans(layout, self.layers)), {"loss": Number()})

    def batch_key(self) -> Hashable:
        return LayerUpdate, self.training, self.layers, self.halves is None

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        spans = trainable_spans(trainer.layout, self.layers)
        jobs = [
            TrainingJob(part, task.model, task.seed)
            for task, context in zip(tasks, contexts, strict=True)
            for part in task.parts(context.client.train)
        ]
        trained = trainer.train(jobs, self.training)
        assert trained.vectors is not None
        updates = gather(trained.vectors, spans).reshape(len(tasks), -1)
        losses = torch.as_tensor(trained.losses).reshape(len(tasks), -1).mean(dim=1)
        return replies_to(contexts, Trained.of(updates, losses, trainer.layout))

    def parts(self, data: Split) -> Sequence[Split]:
        """What each update is trained on: all the data, or its halves."""
        return [data] if self.halves is None else halves_of(data, self.halves)


@dataclass(frozen=True)
class Divergence(Task):
    """Train as `task` says and send, in place of the update, how far it is from `mean`, the update of all: one number.

    It is ‖u − mean‖ or, with halves, `clustering.half_distances` of both halves, each from its own mean.
    """

    task: LayerUpdate
    mean: Tensor

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"divergence": Number()})

    def cost(self, client: Client) -> float:
        return self.task.cost(client)

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        [reply] = self.task.answers([self.task], [context], trainer)
        apart = _vector(reply).double() - self.mean.double()
        if self.task.halves is None:
            value = float(apart.norm())
        else:
            one, two = apart[None].chunk(2, dim=1)
            value = float(half_distances(one, two, layer_outputs(trainer.layout, self.task.layers)))
        return Reply(context.client.id, reply.samples, None, {"divergence": value})


def trainable_spans(layout: Layout, layers: str | tuple[str, ...]) -> tuple[slice, ...]:
    """The places of the named layers without their buffers."""
    end = layout.trainable
    return tuple(slice(span.start, min(span.stop, end)) for span in layout.select(layers) if span.start < end)


def layer_outputs(layout: Layout, layers: str | tuple[str, ...]) -> Tensor:
    """The output that each number of the named layers' update belongs to, numbered from 0 without gaps."""
    chosen = gather(layout.output_of(), trainable_spans(layout, layers))
    numbers: Tensor = torch.unique(chosen, return_inverse=True)[1]
    return numbers


@dataclass(frozen=True)
class StagedTraining(Task):
    """Train `model` `(d,)` as `Train` does; then, all else frozen, each row of `specific` `(rows, h)` in its place.

    The rows are values of `layers` (h numbers in all): w^Cj for j = i … C−1, where the client is of cluster i and
    the model itself holds w^CC. Each starts beside the shared and private layers that the client has just trained,
    sees the same batches, and is the only thing that learns. The reply's vector is the update of `model` followed by
    the rows' updates, `(d + rows · h,)`.
    """

    model: Annotated[Tensor, Sent(without="private", drawn="init")]
    specific: Tensor
    layers: tuple[str, ...]
    training: Training
    seed: int
    private: tuple[str, ...] = ()
    init: int | None = None

    def schema(self, layout: Layout) -> ReplySchema:
        size = layout.size + self.specific.numel()
        return ReplySchema(size, {"loss": Number()}, private=layout.select(self.private))

    def cost(self, client: Client) -> float:
        return (1 + len(self.specific)) * super().cost(client)

    def batch_key(self) -> Hashable:
        # Clients of all clusters are trained together first, exactly as the base method would train them.
        return StagedTraining, self.training, self.layers, self.private

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        base = [Train(task.model, task.training, task.seed, task.private) for task in tasks]
        replies = base[0].answers(base, contexts, trainer)
        private = trainer.layout.select(self.private)
        trained = [
            with_private(task.model + _vector(reply), private, context.state)
            for task, reply, context in zip(tasks, replies, contexts, strict=True)
        ]
        rows: list[list[Tensor]] = [[] for _ in tasks]
        for row in range(max(len(task.specific) for task in tasks)):
            those = [i for i, task in enumerate(tasks) if row < len(task.specific)]
            updates = self._specific_updates(row, those, tasks, contexts, trained, trainer)
            for i, update in zip(those, updates, strict=True):
                rows[i].append(update)
        return [_joined(reply, own) for reply, own in zip(replies, rows, strict=True)]

    def _specific_updates(
        self,
        row: int,
        those: Sequence[int],
        tasks: Sequence[Self],
        contexts: Sequence[ClientContext],
        trained: Sequence[Tensor],
        trainer: Trainer,
    ) -> Tensor:
        """Updates `(those, h)` of a row of `specific`, beside the layers that these clients have just trained."""
        places = trainer.layout.select(self.layers)
        jobs = []
        for i in those:
            start = trained[i].clone()
            scatter(start, places, tasks[i].specific[row])
            jobs.append(TrainingJob(contexts[i].client.train, start, tasks[i].seed))
        return gather(updates_of(trainer, jobs, replace(self.training, layers=self.layers)), places)


def _vector(reply: Reply) -> Tensor:
    assert reply.vector is not None
    return reply.vector


def _joined(reply: Reply, rows: Sequence[Tensor]) -> Reply:
    """The reply with the rows' updates after its own; its norm is that of its own, or NaN where a later one broke."""
    finite = all(bool(torch.isfinite(row).all()) for row in rows)
    norm = reply.norm if finite else float("nan")
    return replace(reply, vector=torch.cat([_vector(reply), *rows]), values={**reply.values, "norm": norm})
