"""What two halves of a client's data say: updates with independent noise, and losses on the half not trained on."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from coterie.federation import Client, Split
from coterie.parameters import Layout
from coterie.randomness import derive, torch_generator
from coterie.tasks.base import Array, ClientContext, Number, Reply, ReplySchema, Task, tensor_key
from coterie.tasks.moments import part_of_samples
from coterie.trainers.base import Trainer, Training, TrainingJob
from coterie.trainers.losses import output_offset

OFFSET_SCALES = (0.0, 0.5, 1.0)
"""How much of a fitted output offset is added; 0 is the model as it is."""
TARGETS_AT_ONCE = 2**14
"""Targets, times models, that are judged together: the outputs of all are held at once."""


def halves_of(data: Split, seed: int) -> tuple[Split, Split]:
    """Two disjoint halves of the data, a function of the seed; a single sample is both."""
    if data.block is not None and len(data.block.unique()) > 1:  # a recording, a day or a patient stays whole
        half = part_of_samples(data, 2, seed)
        return data.take(half == 0), data.take(half == 1)
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


def joined(clients: Sequence[Client], seeds: Sequence[int | None]) -> Halves:
    """The halves of the clients, each cut by its own seed; with None, its training and its validation data."""
    parts: list[Split] = []
    for client, seed in zip(clients, seeds, strict=True):
        parts += (client.train, client.validation) if seed is None else halves_of(client.train, seed)
    sizes = torch.tensor([len(part) for part in parts])
    unit = torch.arange(len(parts)).repeat_interleave(sizes)
    data = Split(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
    return Halves(data, unit, sizes.double())


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


def offset_models(
    models: Sequence[Tensor], seeds: Sequence[int], contexts: Sequence[ClientContext], trainer: Trainer
) -> list[Tensor]:
    """Each client's model twice `(2, d)`: with the output offset that explains best its first half, and its second.

    What an offset explains is then no part of an update from there.
    """
    starts = [model.expand(2, -1) for model in models]
    for group in _together(contexts, [tensor_key(model) for model in models]):
        model = models[group[0]]
        halves = joined([contexts[i].client for i in group], [seeds[i] for i in group])
        outputs = trainer.outputs(halves.data, model[None])
        offsets = output_offset(outputs, halves.data.y, halves.unit)[0].reshape(len(halves.sizes), -1)
        shifted = trainer.with_offsets(model, torch.nan_to_num(offsets, 0.0, 0.0, 0.0), halves.data)
        for i, start in zip(group, shifted.reshape(len(group), 2, -1), strict=True):
            starts[i] = start
    return starts


@dataclass(frozen=True)
class HalfUpdates(Task):
    """Train on each of two halves of the data, and send both updates `(2·d,)`, one after the other.

    Training starts at `model` with the output offset that explains the half best: how often a client has each label
    says nothing of who belongs together, and would drown what does.
    A single sample has no halves: its two updates are the same. `halves` is the seed of the halves, which stay the same
    for a client's whole life; `seed` is that of the batches.
    """

    model: Tensor
    training: Training
    seed: int
    halves: int

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(2 * layout.size, {"loss": Number()})

    def batch_key(self) -> Hashable:
        return HalfUpdates, self.training

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        starts = offset_models([task.model for task in tasks], [task.halves for task in tasks], contexts, trainer)
        jobs = []
        for task, context, start in zip(tasks, contexts, starts, strict=True):
            for number, half in enumerate(halves_of(context.client.train, task.halves)):
                jobs.append(TrainingJob(half, start[number], derive(task.seed, "half", number)))
        trained = trainer.train(jobs, self.training)
        assert trained.vectors is not None
        replies = []
        for i, context in enumerate(contexts):
            rows = trained.vectors[2 * i : 2 * i + 2]
            values = {"loss": float(trained.losses[2 * i : 2 * i + 2].mean())}
            replies.append(Reply(context.client.id, len(context.client.train), rows.reshape(-1), values))
        return replies


@dataclass(frozen=True)
class HeldOut(Task):
    """Losses of models on the half of the data that they were not made of.

    `models (2, m, d)` are those made of first halves, judged on the client's second half, and those made of second
    halves, judged on its first; the first of each m is the one that the others are compared with. With `halves` None
    the halves are the client's training and its validation data, and `models (1, m, d)` are judged on the latter. The
    reply holds, as means over what is judged, `loss (scales, m)` with each of OFFSET_SCALES of an output offset that
    was fitted on the half not judged, `within (m − 1,)`, the squared standard error, over samples, of how much each
    model lowers the loss, and how many samples were `judged`. NaN where there is nothing to judge by.
    """

    models: Tensor
    halves: int | None

    def schema(self, layout: Layout) -> ReplySchema:
        count = self.models.shape[1]
        loss = Array((len(OFFSET_SCALES) * count,), finite=False)
        return ReplySchema(
            None, {"loss": loss, "within": Array((count - 1,), finite=False), "judged": Number(minimum=0)}
        )

    def cost(self, client: Client) -> float:
        return float(self.models.shape[0] * self.models.shape[1] * (len(client.train) + len(client.validation)))

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        replies = {i: self._nothing(context.client) for i, context in enumerate(contexts)}
        able = [i for i, (task, own) in enumerate(zip(tasks, contexts, strict=True)) if task._can_judge(own.client)]
        keys = [tensor_key(tasks[i].models) for i in able]
        for places in _together([contexts[i] for i in able], keys):
            group = [able[place] for place in places]
            clients = [contexts[i].client for i in group]
            halves = joined(clients, [tasks[i].halves for i in group])
            found = tasks[group[0]]._judged(halves, clients, trainer)
            replies |= dict(zip(group, found, strict=True))
        return [replies[i] for i in range(len(tasks))]

    def _can_judge(self, client: Client) -> bool:
        return len(client.train) > 1 if self.halves is not None else min(len(client.train), len(client.validation)) > 0

    def _nothing(self, client: Client) -> Reply:
        count = self.models.shape[1]
        values = {"loss": [math.nan] * (len(OFFSET_SCALES) * count), "within": [math.nan] * (count - 1), "judged": 0}
        return Reply(client.id, len(client.train), None, values)

    def _judged(self, halves: Halves, clients: Sequence[Client], trainer: Trainer) -> list[Reply]:
        """The replies of clients that are asked about the same models."""
        folds = range(len(self.models))
        means, squares = zip(*(self._of_half(halves, made_of, trainer) for made_of in folds), strict=True)
        loss = torch.stack(means).mean(0)  # (clients, scales, m)
        within = torch.stack(squares).sum(0) / len(folds) ** 2
        sizes = halves.sizes.reshape(-1, 2)[:, 1 - torch.tensor(folds)].sum(1)
        return [
            Reply(
                client.id,
                len(client.train),
                None,
                {"loss": loss[i].flatten().tolist(), "within": within[i].tolist(), "judged": float(sizes[i])},
            )
            for i, client in enumerate(clients)
        ]

    def _of_half(self, halves: Halves, made_of: int, trainer: Trainer) -> tuple[Tensor, Tensor]:
        """Losses (clients, scales, m) of the models made of one half, on the other, and their differences' errors."""
        losses = offset_losses(halves, self.models[made_of], trainer)
        judged = halves.unit % 2 != made_of
        client, losses = halves.unit[judged] // 2, losses[:, :, judged]
        clients = len(halves.sizes) // 2
        samples = torch.bincount(client, minlength=clients).double()
        means = _sums(losses, client, clients) / samples
        lowered = losses[0, :1] - losses[0, 1:]
        mean, square = _sums(lowered, client, clients) / samples, _sums(lowered.square(), client, clients) / samples
        errors = (square - mean.square()).clamp_min(0) / (samples - 1).clamp_min(1)
        return means.permute(2, 0, 1), errors.T


def _sums(values: Tensor, of: Tensor, count: int) -> Tensor:
    """Sums of the values (..., n) that belong to each of `count` clients: (..., count)."""
    total = torch.zeros(*values.shape[:-1], count, dtype=torch.float64)
    return total.index_add_(-1, of, values)
