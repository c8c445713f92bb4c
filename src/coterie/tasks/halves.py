"""What two halves of a client's data say: updates with independent noise, and losses on data not trained on."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.federation import Client, Split
from coterie.parameters import Layout
from coterie.randomness import derive, torch_generator
from coterie.tasks.base import (
    Array,
    ClientContext,
    Number,
    Reduction,
    Reply,
    ReplyBlock,
    ReplySchema,
    Task,
    reduced,
    with_norm,
)
from coterie.trainers.base import Trainer, Training, TrainingJob
from coterie.trainers.losses import output_offset

OFFSET_SCALES = (0.0, 0.5, 1.0)
"""How much of a fitted output offset is added; 0 is the model as it is."""
STEP_SCALES = (1.0, 0.5, 0.25)
"""How much of a client's own step is taken: a small client's whole step overshoots."""

LABELS = 64
"""Places for labels; of more, those that are equal modulo LABELS share one, which can only hide a difference."""


def halves_of(data: Split, seed: int) -> tuple[Split, Split]:
    """Two disjoint halves of the data, a function of the seed; a single sample is both."""
    order = torch.randperm(len(data), generator=torch_generator(seed, "halves"))
    first, second = (order, order) if len(data) == 1 else order.chunk(2)
    return Split(data.x[first], data.y[first]), Split(data.x[second], data.y[second])


def offset_losses(fit: Split, judge: Split, model: Tensor, trainer: Trainer) -> list[float]:
    """Losses of `model` on `judge` with each scale of the output offset fitted on `fit`."""
    offset = output_offset(trainer.outputs(fit, model), fit.y)
    outputs = trainer.outputs(judge, model)
    return [trainer.loss_of(outputs + scale * offset, judge.y) for scale in OFFSET_SCALES]


def _step_losses(judge: Split, model: Tensor, step: Tensor, trainer: Trainer) -> list[float]:
    """Losses on `judge` after each scale of a step from `model`."""
    return [trainer.loss_of(trainer.outputs(judge, model + scale * step), judge.y) for scale in STEP_SCALES]


def _mean_of(pairs: Sequence[Sequence[float]]) -> list[float]:
    """The mean of several lists, number by number."""
    return [sum(values) / len(pairs) for values in zip(*pairs, strict=True)]


@dataclass(frozen=True)
class HalfUpdates(Task):
    """Train from `model` on each of two halves of the data, and send both updates `(2·d,)`, one after the other.

    Every loss is judged on the half that was not trained on, both ways averaged: `whole`, that of `model` with each
    of OFFSET_SCALES of the output offset, and `alone`, that after each of STEP_SCALES of the client's own step.
    A single sample has no halves: its losses are NaN and its two updates the same. `halves` is the seed of the
    halves, which stay the same for a client's whole life; `seed` is that of the batches.
    """

    model: Tensor
    training: Training
    seed: int
    halves: int

    def schema(self, layout: Layout) -> ReplySchema:
        values: dict[str, Number | Array] = {
            "loss": Number(),
            "whole": Array((len(OFFSET_SCALES),), finite=False),
            "alone": Array((len(STEP_SCALES),), finite=False),
        }
        return ReplySchema(2 * layout.size, values)

    def batch_key(self) -> Hashable:
        return HalfUpdates, self.training

    def perform(
        self,
        tasks: Sequence[HalfUpdates],
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        halves = [halves_of(context.client.train, task.halves) for task, context in zip(tasks, contexts, strict=True)]
        jobs = [
            TrainingJob(half, task.model, derive(task.seed, "half", number))
            for task, pair in zip(tasks, halves, strict=True)
            for number, half in enumerate(pair)
        ]
        trained = trainer.train(jobs, self.training)
        assert trained.vectors is not None
        replies = []
        for i, (task, context, pair) in enumerate(zip(tasks, contexts, halves, strict=True)):
            rows = trained.vectors[2 * i : 2 * i + 2]
            ways = [(pair[0], pair[1], rows[0]), (pair[1], pair[0], rows[1])]
            whole, alone = [math.nan] * len(OFFSET_SCALES), [math.nan] * len(STEP_SCALES)
            if len(context.client.train) > 1:
                whole = _mean_of([offset_losses(fit, judge, task.model, trainer) for fit, judge, _ in ways])
                alone = _mean_of([_step_losses(judge, task.model, row, trainer) for _, judge, row in ways])
            values = {"loss": float(trained.losses[2 * i : 2 * i + 2].mean()), "whole": whole, "alone": alone}
            reply = Reply(context.client.id, len(context.client.train), rows.reshape(-1), values)
            replies.append(with_norm(reply, trainer.layout))
        return reduced(replies, reduce)


class LabelSums(NamedTuple):
    """Sums over units (one half of one client's data each) for each label, and for all together; each `(LABELS + 1,)`.

    A gain is the fall of the summed loss of a unit's samples, with an output offset fitted for each model.
    """

    units: Tensor
    samples: Tensor
    own: Tensor
    """Gains by the step of the client's own side."""
    other: Tensor
    """Gains by the step of the other side."""
    other_squared: Tensor
    other_times_samples: Tensor
    samples_squared: Tensor
    other_squared_by_sample: Tensor
    """Sums of the squared gains of single samples."""


@dataclass(frozen=True)
class HalfLosses(Task):
    """Judge the steps of the two sides of each of k splits, on halves of data that they were not made of.

    `models (4k, d)` holds, for each split, `model` after the step of the client's own side made of its members' first
    halves, after that made of their second halves, and both for the other side. The reply's `apart` gives the losses
    of the own side with each scale of an output offset fitted on the other half, both ways averaged, split by split;
    `preference`, both ways of each split, by how much the own side's step, or that of a part of it in a split below,
    lowers the loss more than the other side's.
    Its vector holds LabelSums `(k, 8, LABELS + 1)`; it is meant to be added up over a side, so that nobody learns a
    single client's labels.
    """

    model: Tensor
    models: Tensor
    halves: int

    @property
    def splits(self) -> int:
        return len(self.models) // 4

    def schema(self, layout: Layout) -> ReplySchema:
        numbers = self.splits * len(LabelSums._fields) * (LABELS + 1)
        values: dict[str, Number | Array] = {
            "apart": Array((self.splits * len(OFFSET_SCALES),), finite=False),
            "preference": Array((2 * self.splits,), finite=False),
        }
        return ReplySchema(numbers, values)

    def cost(self, client: Client) -> float:
        return float(2 * (1 + len(self.models)) * len(client.train))

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        data = context.client.train
        first, second = halves_of(data, self.halves)
        sums = torch.zeros(self.splits, len(LabelSums._fields), LABELS + 1, dtype=torch.float64)
        apart: list[list[float]] = []
        preference = [0.0] * (2 * self.splits)
        for way, (fit, judge) in enumerate(((first, second), (second, first))):
            samples = _by_label(torch.ones(len(judge), dtype=torch.float64), judge.y)
            before = _losses_with_offset(fit, judge, self.model, trainer)
            owns, others = [], []
            for split, models in enumerate(self.models.split(4)):
                gains = [before - _losses_with_offset(fit, judge, models[i + way], trainer) for i in (0, 2)]
                own, other, squares = (_by_label(gain, judge.y) for gain in (*gains, gains[1] ** 2))
                held = (samples > 0).double()
                sums[split] += torch.stack(
                    LabelSums(held, samples, own, other, other**2, other * samples, samples**2, squares)
                )
                owns.append(float(own[-1]) / len(judge))
                others.append(float(other[-1]) / len(judge))
            for split, other_gain in enumerate(others):
                preference[2 * split + way] = max(owns[split:]) - other_gain
            apart.append(
                [loss for models in self.models.split(4) for loss in offset_losses(fit, judge, models[way], trainer)]
            )
        values = {"apart": _mean_of(apart), "preference": preference}
        reply = Reply(context.client.id, len(data), sums.reshape(-1).to(self.models.dtype), values)
        return with_norm(reply, trainer.layout)


def label_places(targets: Tensor) -> Tensor:
    """The place `(n,)` of each sample among LABELS: its label, or 0 where a sample has no single label."""
    if targets.is_floating_point() or targets.numel() != len(targets):
        return torch.zeros(len(targets), dtype=torch.long)
    return targets.reshape(-1) % LABELS


def _losses_with_offset(fit: Split, judge: Split, model: Tensor, trainer: Trainer) -> Tensor:
    """The loss of each sample of `judge`, float64 `(n,)`, with an output offset fitted on `fit`."""
    outputs = trainer.outputs(judge, model) + output_offset(trainer.outputs(fit, model), fit.y)
    return trainer.losses_of(outputs, judge.y).double()


def _by_label(values: Tensor, targets: Tensor) -> Tensor:
    """The sum of the samples' values over each label, and over all `(LABELS + 1,)`."""
    sums = torch.zeros(LABELS, dtype=torch.float64).index_add_(0, label_places(targets), values)
    return torch.cat([sums, sums.sum(0, keepdim=True)])
