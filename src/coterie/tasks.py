"""What a client can be asked to do, and how it is done on a workbench.

A task knows no method and no server. `perform` does one kind of task for several clients at once, because a
workbench may train many clients in one batched computation; a real client calls it with itself alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.federation import Split
from coterie.messages import (
    NUMBER,
    ClientState,
    Due,
    Order,
    Reply,
    Share,
    Worksite,
    added_up,
    replies_of,
    reports_of,
    sums_of_training,
)
from coterie.parameters import Layout, gather, scatter, span_size
from coterie.randomness import derive, torch_generator
from coterie.workbench import Job, Training, Workbench


def with_private(model: Tensor, spans: Sequence[slice], state: ClientState) -> Tensor:
    """The model a client really uses: the one it was sent, with its own private layers in place."""
    if not spans or "private" not in state:
        return model
    own = model.clone()
    scatter(own, spans, state["private"])
    return own


@dataclass(frozen=True)
class Train:
    """Train from `model` on the client's own data and send the update.

    `private` layers start from the client's own copy, stay with it, and are zero in the update. With `assess` the
    client also reports `start_loss`, the loss of the model as it came on all of its training data.
    """

    model: Tensor
    training: Training
    seed: int
    private: tuple[str, ...] = ()
    assess: bool = False

    def kind(self) -> tuple[Any, ...]:
        return (Train, self.training, self.private, self.assess)

    def down(self, layout: Layout) -> int:
        return NUMBER * (layout.size - span_size(layout.select(self.private)))

    def perform(self, tasks: Sequence[Train], sites: Sequence[Worksite], bench: Workbench) -> list[Reply]:
        spans = bench.layout.select(self.private)
        jobs = [
            Job(site.client.train, with_private(task.model, spans, site.state), task.seed)
            for task, site in zip(tasks, sites, strict=True)
        ]
        extra: dict[str, Sequence[Any]] = {"start_loss": _start_losses(jobs, bench)} if self.assess else {}
        updates, losses = bench.train(jobs, self.training)
        if spans:
            for row, job, site in zip(updates, jobs, sites, strict=True):
                own = gather(row, spans) + gather(job.start, spans)
                if not torch.isfinite(own).all():
                    continue  # what is not finite stays in the update, where the engine sees it
                site.state["private"] = own
                for span in spans:
                    row[span] = 0
        return replies_of(sites, updates, losses, bench.layout.size - span_size(spans) + len(extra), bench, **extra)

    def perform_summed(
        self, tasks: Sequence[Train], sites: Sequence[Worksite], bench: Workbench, bill: Sequence[Due]
    ) -> Share:
        """What `perform` does, with the updates added up where they are made."""
        if self.private or self.assess:
            return added_up(self.perform(tasks, sites, bench), bill)
        jobs = [Job(site.client.train, task.model, task.seed) for task, site in zip(tasks, sites, strict=True)]
        sums, norms, losses = sums_of_training(bench, jobs, self.training, bill)
        replies = reports_of(sites, norms, losses, bench.layout.size)
        return Share([replace(reply, group=due.group) for reply, due in zip(replies, bill, strict=True)], sums)


def _start_losses(jobs: Sequence[Job], bench: Workbench) -> list[float]:
    """The loss of each job's starting vector on all of its data; jobs that start from one vector together."""
    by_start: dict[int, list[int]] = {}
    for i, job in enumerate(jobs):
        by_start.setdefault(id(job.start), []).append(i)
    losses = [0.0] * len(jobs)
    for rows in by_start.values():
        found, _ = bench.evaluate([jobs[i].data for i in rows], jobs[rows[0]].start[None])
        for i, loss in zip(rows, found[:, 0].tolist(), strict=True):
            losses[i] = loss
    return losses


@dataclass(frozen=True)
class Evaluate:
    """Report the mean loss and accuracy of each of k models `(k, d)` on one part of the client's data."""

    models: Tensor
    part: str = "test"
    private: tuple[str, ...] = ()

    def kind(self) -> tuple[Any, ...]:
        # With private layers every client has models of its own, so nothing is shared.
        return (Evaluate, self.part, self.private, id(self.models))

    def down(self, layout: Layout) -> int:
        return NUMBER * len(self.models) * (layout.size - span_size(layout.select(self.private)))

    def perform(self, tasks: Sequence[Evaluate], sites: Sequence[Worksite], bench: Workbench) -> list[Reply]:
        data = [site.client.part(self.part) for site in sites]
        spans = bench.layout.select(self.private)
        if spans:
            rows = [
                bench.evaluate([split], torch.stack([with_private(m, spans, site.state) for m in self.models]))
                for split, site in zip(data, sites, strict=True)
            ]
            losses, accuracies = (torch.cat(column) for column in zip(*rows, strict=True))
        else:
            losses, accuracies = bench.evaluate(data, self.models)
        return [
            Reply(
                site.client.id,
                len(split),
                values={"loss": loss, "accuracy": accuracy},
                up=NUMBER * 2 * len(self.models),
            )
            for site, split, loss, accuracy in zip(sites, data, losses.tolist(), accuracies.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Gradient:
    """Send the full-batch gradient of the client's training loss at `model`."""

    model: Tensor

    def kind(self) -> tuple[Any, ...]:
        return (Gradient, id(self.model))

    def down(self, layout: Layout) -> int:
        return NUMBER * layout.size

    def perform(self, tasks: Sequence[Gradient], sites: Sequence[Worksite], bench: Workbench) -> list[Reply]:
        gradients, losses = bench.gradient([site.client.train for site in sites], self.model)
        return replies_of(sites, gradients, losses, bench.layout.trainable, bench)


@dataclass(frozen=True)
class Noise:
    """Report how noisy an update from `model` is: γ̂ = ‖Δa − Δb‖ / ‖Δa + Δb‖ over two halves of the data.

    A single sample has no halves: its noise is infinite, for nothing speaks against it.
    """

    model: Tensor
    training: Training
    seed: int

    def kind(self) -> tuple[Any, ...]:
        return (Noise, self.training)

    def down(self, layout: Layout) -> int:
        return NUMBER  # the client has the model from the round's training; only the question is sent

    def perform(self, tasks: Sequence[Noise], sites: Sequence[Worksite], bench: Workbench) -> list[Reply]:
        jobs = []
        for task, site in zip(tasks, sites, strict=True):
            data = site.client.train
            order = torch.randperm(len(data), generator=torch_generator(task.seed, "halves"))
            for half, index in enumerate((order, order) if len(data) == 1 else order.chunk(2)):
                jobs.append(Job(Split(data.x[index], data.y[index]), task.model, derive(task.seed, "half", half)))
        updates, _ = bench.train(jobs, self.training)
        updates = updates[:, : bench.layout.trainable]
        a, b = updates[0::2], updates[1::2]
        total = torch.linalg.vector_norm(a + b, dim=1).clamp_min(torch.finfo(updates.dtype).tiny)
        noise = (torch.linalg.vector_norm(a - b, dim=1) / total).tolist()
        sizes = [len(site.client.train) for site in sites]
        return [
            Reply(site.client.id, n, values={"noise": value if n > 1 else math.inf}, up=NUMBER)
            for site, n, value in zip(sites, sizes, noise, strict=True)
        ]


@dataclass(frozen=True)
class Choose:
    """Choose the model `(k, d)` with the lowest training loss (ties to the lowest index), then work from it.

    With `training` the reply's vector is the update of local training, without it the gradient at the chosen model.
    `sent` is how many numbers the k models take on the wire: less than k·d when layers are shared.
    """

    models: Tensor
    training: Training | None
    seed: int
    sent: int

    def kind(self) -> tuple[Any, ...]:
        return (Choose, id(self.models), self.training)

    def down(self, layout: Layout) -> int:
        return NUMBER * self.sent

    def perform(self, tasks: Sequence[Choose], sites: Sequence[Worksite], bench: Workbench) -> list[Reply]:
        data = [site.client.train for site in sites]
        losses, choices = self._chosen(data, bench)
        if self.training is not None:
            jobs = [Job(split, self.models[c], task.seed) for split, c, task in zip(data, choices, tasks, strict=True)]
            vectors, seen = bench.train(jobs, self.training)
            numbers = bench.layout.size
        else:
            vectors = torch.empty(len(sites), bench.layout.size, dtype=self.models.dtype)
            seen = torch.empty(len(sites), dtype=self.models.dtype)
            for choice in set(choices):
                rows = [i for i, c in enumerate(choices) if c == choice]
                vectors[rows], seen[rows] = bench.gradient([data[i] for i in rows], self.models[choice])
            numbers = bench.layout.trainable
        # The k losses and the choice go up beside the vector; `replies_of` counts the loss of the work itself.
        replies = replies_of(sites, vectors, seen, numbers + len(self.models) + 1, bench, losses=losses.tolist())
        return [replace(reply, group=choice) for reply, choice in zip(replies, choices, strict=True)]

    def perform_summed(
        self, tasks: Sequence[Choose], sites: Sequence[Worksite], bench: Workbench, bill: Sequence[Due]
    ) -> Share:
        """What `perform` does, with the vectors added up by choice where they are made."""
        if self.training is None:
            return added_up(self.perform(tasks, sites, bench), bill)
        data = [site.client.train for site in sites]
        losses, choices = self._chosen(data, bench)
        jobs = [Job(split, self.models[c], task.seed) for split, c, task in zip(data, choices, tasks, strict=True)]
        chosen = [Due(due.weight, choice) for due, choice in zip(bill, choices, strict=True)]
        sums, norms, seen = sums_of_training(bench, jobs, self.training, chosen)
        replies = reports_of(sites, norms, seen, bench.layout.size + len(self.models) + 1, losses=losses.tolist())
        return Share([replace(reply, group=choice) for reply, choice in zip(replies, choices, strict=True)], sums)

    def _chosen(self, data: Sequence[Split], bench: Workbench) -> tuple[Tensor, list[int]]:
        """Losses `(clients, k)` and the model of each client's lowest one."""
        losses, _ = bench.evaluate(data, self.models)
        # A model that has become NaN is nobody's choice, though argmin would take it for the lowest.
        choices: list[int] = losses.masked_fill(losses.isnan(), torch.inf).argmin(dim=1).tolist()
        return losses, choices


def _by_kind(orders: Sequence[Order]) -> Iterable[list[int]]:
    """The positions of the orders that can be performed together."""
    kinds: dict[Any, list[int]] = {}
    for position, order in enumerate(orders):
        kinds.setdefault(order.task.kind(), []).append(position)
    return kinds.values()


def perform(orders: Sequence[Order], sites: Mapping[str, Worksite], bench: Workbench) -> list[Reply]:
    """Do all the orders, those of one kind together, and return the replies in the order of the orders."""
    replies: list[Reply | None] = [None] * len(orders)
    for positions in _by_kind(orders):
        tasks = [orders[p].task for p in positions]
        done = tasks[0].perform(tasks, [sites[orders[p].client] for p in positions], bench)
        for position, reply in zip(positions, done, strict=True):
            replies[position] = reply
    return [reply for reply in replies if reply is not None]


def perform_summed(
    orders: Sequence[Order], bill: Sequence[Due], sites: Mapping[str, Worksite], bench: Workbench
) -> Share:
    """Do all the orders as `perform` does, but give the vectors' weighted sums instead of the vectors."""
    replies: list[Reply | None] = [None] * len(orders)
    sums: dict[int, Tensor] = {}
    for positions in _by_kind(orders):
        tasks = [orders[p].task for p in positions]
        theirs, dues = [sites[orders[p].client] for p in positions], [bill[p] for p in positions]
        adds = getattr(tasks[0], "perform_summed", None)
        share = adds(tasks, theirs, bench, dues) if adds else added_up(tasks[0].perform(tasks, theirs, bench), dues)
        for position, reply in zip(positions, share.replies, strict=True):
            replies[position] = reply
        for group, total in share.sums.items():
            sums[group] = sums[group].add_(total) if group in sums else total
    return Share([reply for reply in replies if reply is not None], sums)
