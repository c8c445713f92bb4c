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
    tensor_key,
    with_norm,
)
from coterie.trainers.base import Trainer, Training, TrainingJob
from coterie.trainers.losses import output_offset

OFFSET_SCALES = (0.0, 0.5, 1.0)
"""How much of a fitted output offset is added; 0 is the model as it is."""

TARGETS_AT_ONCE = 2**14
"""Targets, times models, that are judged together: the outputs of all are held at once."""

LABELS = 64
"""Places for labels; of more, those that are equal modulo LABELS share one, which can only hide a difference."""
PART_WIDTH = 256
"""Numbers of one output up to which a projection keeps their products exactly; more are projected to so many."""
DEALT = 4
"""Places that samples without a label of their own are dealt to, so that few clients have several to compare."""


def halves_of(data: Split, seed: int) -> tuple[Split, Split]:
    """Two disjoint halves of the data, a function of the seed; a single sample is both."""
    order = torch.randperm(len(data), generator=torch_generator(seed, "halves"))
    first, second = (order, order) if len(data) == 1 else order.chunk(2)
    return Split(data.x[first], data.y[first]), Split(data.x[second], data.y[second])


class Halves(NamedTuple):
    """The halves of several clients' data, joined: a client's first half, its second, then those of the next.

    A half is a unit: those of client i are units 2i and 2i + 1.
    """

    data: Split
    unit: Tensor
    """(n,) the unit of each sample."""
    sizes: Tensor
    """(units,) samples of each, float64."""

    def means(self, values: Tensor) -> Tensor:
        """The mean over each client's two units of the mean over a unit's samples: (..., n) gives (..., clients)."""
        lead = values.shape[:-1]
        sums = torch.zeros(*lead, len(self.sizes), dtype=torch.float64).index_add_(-1, self.unit, values.double())
        return (sums / self.sizes).reshape(*lead, -1, 2).mean(-1)


def joined(clients: Sequence[Client], seeds: Sequence[int]) -> Halves:
    """The halves of the clients, each cut by its own seed."""
    parts = [half for client, seed in zip(clients, seeds, strict=True) for half in halves_of(client.train, seed)]
    sizes = torch.tensor([len(part) for part in parts])
    unit = torch.arange(len(parts)).repeat_interleave(sizes)
    data = Split(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    return Halves(data, unit, sizes.double())


def output_parts(layout: Layout, most: int) -> list[Tensor]:
    """The places of each output's own numbers, where the layout shows several; of more than `most`, some share one."""
    places = layout.outputs()
    if most < 2 or len(places) < 2:
        return []
    return [torch.cat(places[i::most]) for i in range(min(most, len(places)))]


def part_width(parts: Sequence[Tensor]) -> int:
    """The numbers that are sent of each part where parts are projected: one for all, however long each is."""
    return min(max(map(len, parts), default=0), PART_WIDTH)


def offset_losses(halves: Halves, models: Tensor, trainer: Trainer, scales: Sequence[float] = OFFSET_SCALES) -> Tensor:
    """The loss of each sample under `models (k, d)`, (scales, k, n) float64, with each scale of the output offset that
    was fitted on the other half of the client's data."""
    parts = []
    for part in models.split(max(1, TARGETS_AT_ONCE // max(halves.data.y.numel(), 1))):
        outputs = trainer.outputs(halves.data, part)
        offsets = output_offset(outputs, halves.data.y, halves.unit)[:, halves.unit ^ 1]
        parts.append(torch.stack([trainer.losses_of(outputs + s * offsets, halves.data.y) for s in scales]))
    return torch.cat(parts, 1).double()


def _together(contexts: Sequence[ClientContext], keys: Sequence[Hashable]) -> list[list[int]]:
    """Positions of clients that are judged together: their keys are equal, and they have not too many targets."""
    groups: list[list[int]] = []
    latest: dict[Hashable, tuple[list[int], int]] = {}
    for i, (context, key) in enumerate(zip(contexts, keys, strict=True)):
        group, targets = latest.get(key, ([], 0))
        if not group or targets + context.client.train.y.numel() > TARGETS_AT_ONCE:
            group, targets = [], 0
            groups.append(group)
        group.append(i)
        latest[key] = group, targets + context.client.train.y.numel()
    return groups


@dataclass(frozen=True)
class HalfUpdates(Task):
    """Train from `model` on each of two halves of the data, and send both updates `(2·d,)`, one after the other.

    `whole` is the loss of `model` with each of OFFSET_SCALES of the output offset that was fitted on the other half,
    both ways averaged. A single sample has no halves: its losses are NaN and its two updates the same. `halves` is the
    seed of the halves, which stay the same for a client's whole life; `seed` is that of the batches.
    """

    model: Tensor
    training: Training
    seed: int
    halves: int

    def schema(self, layout: Layout) -> ReplySchema:
        whole = Array((len(OFFSET_SCALES),), finite=False)
        return ReplySchema(2 * layout.size, {"loss": Number(), "whole": whole})

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
        whole = self._whole(tasks, contexts, trainer)
        replies = []
        for i, context in enumerate(contexts):
            rows = trained.vectors[2 * i : 2 * i + 2]
            values = {"loss": float(trained.losses[2 * i : 2 * i + 2].mean()), "whole": whole[i]}
            reply = Reply(context.client.id, len(context.client.train), rows.reshape(-1), values)
            replies.append(with_norm(reply, trainer.layout))
        return reduced(replies, reduce)

    def _whole(
        self, tasks: Sequence[HalfUpdates], contexts: Sequence[ClientContext], trainer: Trainer
    ) -> list[list[float]]:
        """The losses `whole` of every client; many clients have one model, so they are judged together."""
        found = [[math.nan] * len(OFFSET_SCALES)] * len(tasks)
        for group in _together(contexts, [tensor_key(task.model) for task in tasks]):
            halves = joined([contexts[i].client for i in group], [tasks[i].halves for i in group])
            losses = halves.means(offset_losses(halves, tasks[group[0]].model[None], trainer)[:, 0])
            for i, row in zip(group, losses.T.tolist(), strict=True):
                if len(contexts[i].client.train) > 1:
                    found[i] = row
        return found


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
    halves, after that made of their second halves, and both for the other side. The reply's `preference` says, both
    ways of each split, by how much the own side's step, or that of a part of it in a split below, lowers the loss more
    than the other side's. An output offset fitted on the other half of the client's data is added to the outputs.
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
        return ReplySchema(numbers, {"preference": Array((2 * self.splits,), finite=False)}, wide=True)

    def cost(self, client: Client) -> float:
        return float(2 * (1 + len(self.models)) * len(client.train))

    def perform(
        self,
        tasks: Sequence[HalfLosses],
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        keys = [(tensor_key(task.model), tensor_key(task.models)) for task in tasks]
        replies: dict[int, Reply] = {}
        for group in _together(contexts, keys):
            clients = [contexts[i].client for i in group]
            halves = joined(clients, [tasks[i].halves for i in group])
            found = tasks[group[0]]._judged(halves, [client.id for client in clients], trainer)
            replies |= {i: with_norm(reply, trainer.layout) for i, reply in zip(group, found, strict=True)}
        return reduced([replies[i] for i in range(len(tasks))], reduce)

    def _judged(self, halves: Halves, ids: Sequence[str], trainer: Trainer) -> list[Reply]:
        """The replies of clients that are asked about the same models."""
        splits, units = self.splits, len(halves.sizes)
        losses = offset_losses(halves, torch.cat([self.model[None], self.models]), trainer, (1.0,))[0]
        # A sample is judged by steps that were made of the other halves: of the first ones if it is in a second one.
        steps = losses[1:].reshape(splits, 2, 2, -1)
        gains = losses[0] - torch.where(halves.unit % 2 == 1, steps[..., 0, :], steps[..., 1, :])  # split, side, sample
        own, other, squares = (_by_label(g, halves, units) for g in (gains[:, 0], gains[:, 1], gains[:, 1] ** 2))
        samples = _by_label(torch.ones_like(gains[:, 0]), halves, units)
        held = (samples > 0).double()
        rows = LabelSums(held, samples, own, other, other**2, other * samples, samples**2, squares)
        sums = torch.stack(rows, 2).unflatten(1, (-1, 2)).sum(2).transpose(0, 1)  # client, split, row, label
        # The best of the own side's step and those of its parts in the splits below.
        best = own[..., -1].flip(0).cummax(0).values.flip(0)
        preference = ((best - other[..., -1]) / halves.sizes).unflatten(1, (-1, 2)).flip(-1).transpose(0, 1)
        return [
            Reply(
                client,
                int(halves.sizes[2 * i : 2 * i + 2].sum()),
                sums[i].reshape(-1).to(self.models.dtype),
                {"preference": preference[i].reshape(-1).tolist()},
            )
            for i, client in enumerate(ids)
        ]


def label_places(halves: Halves) -> Tensor:
    """The place `(n,)` of each sample among LABELS: its label, or its turn in its unit where it has no single label."""
    targets = halves.data.y
    if targets.is_floating_point() or targets.numel() != len(targets):
        sizes = halves.sizes.long()
        return (torch.arange(len(targets)) - (sizes.cumsum(0) - sizes)[halves.unit]) % DEALT
    return targets.reshape(-1) % LABELS


def _by_label(values: Tensor, halves: Halves, units: int) -> Tensor:
    """The sums of the samples' values (k, n) over each label of each unit, and over all `(k, units, LABELS + 1)`."""
    places = halves.unit * LABELS + label_places(halves)
    sums = torch.zeros(len(values), units * LABELS, dtype=torch.float64).index_add_(1, places, values)
    each = sums.unflatten(1, (units, LABELS))
    return torch.cat([each, each.sum(-1, keepdim=True)], -1)
