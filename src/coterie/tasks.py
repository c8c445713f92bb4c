"""What a client can be asked to do, as small frozen messages, and how it is done on a workbench.

A task knows no method and no server. `perform` does one kind of task for several clients at once, because a
workbench may train many clients in one batched computation; a real client calls it with itself alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from coterie.federation import Client, Split
from coterie.parameters import Layout, gather, scatter, span_size
from coterie.randomness import derive, torch_generator

NUMBER = 4  # bytes of one float32 on the wire


@dataclass(frozen=True)
class Training:
    """How a client trains: plain SGD on its own data."""

    lr: float = 0.1
    """Step size."""
    epochs: int = 1
    """Passes over the client's data (ignored when `steps` is given)."""
    steps: int | None = None
    """Number of SGD steps, instead of epochs."""
    batch_size: int | None = 32
    """Samples in a step; None is all of them (full batch)."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    """FedProx's μ: adds μ/2 ‖θ − θ_start‖² to the loss."""
    layers: tuple[str, ...] = ()
    """Names of the layers to train; the others are frozen. Empty: all."""

    def batches(self, samples: int) -> int:
        """How many SGD steps a client with that many samples takes."""
        if self.steps is not None:
            return self.steps
        size = samples if self.batch_size is None else min(self.batch_size, samples)
        return self.epochs * -(-samples // size)


class Job(NamedTuple):
    """One client's training: its data, the vector it starts from `(d,)`, and the seed of its batches."""

    data: Split
    start: Tensor
    seed: int


class Workbench(Protocol):
    """The computations a client needs, for several clients at once; every engine has one."""

    layout: Layout

    def train(self, jobs: Sequence[Job], training: Training) -> tuple[Tensor, Tensor]:
        """Train every job: the updates `(jobs, d)` and the mean loss seen while training `(jobs,)`."""
        ...

    def evaluate(self, data: Sequence[Split], models: Tensor) -> tuple[Tensor, Tensor]:
        """Mean losses and accuracies `(clients, k)` of the models `(k, d)` on every client's data."""
        ...

    def gradient(self, data: Sequence[Split], model: Tensor) -> tuple[Tensor, Tensor]:
        """Full-batch gradients `(clients, d)` (zero at buffers) and losses `(clients,)` at one model `(d,)`."""
        ...


ClientState = MutableMapping[str, Tensor]
"""What a client keeps between rounds and never sends, such as private layers."""


class Worksite(NamedTuple):
    """A client at work: its data and its own state."""

    client: Client
    state: ClientState


@dataclass(frozen=True)
class Reply:
    """What a client sends back: a vector (an update or a gradient) and a few numbers."""

    client: str
    samples: int
    vector: Tensor | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    group: int = 0
    """Which of the offered models the vector belongs to."""
    up: int = 0
    """Bytes sent to the server."""

    @property
    def norm(self) -> float:
        """‖update‖ over the trainable numbers."""
        return float(self.values["norm"])


@runtime_checkable
class Task(Protocol):
    """A message to a client."""

    def down(self, layout: Layout) -> int:
        """Bytes that reach the client with this task."""
        ...

    def perform(self, tasks: Sequence[Any], sites: Sequence[Worksite], bench: Workbench) -> list[Reply]:
        """Do `tasks` (all of this kind and alike in everything but models and seeds), one for each site."""
        ...

    def kind(self) -> tuple[Any, ...]:
        """Tasks of one kind may be performed together."""
        ...


class Order(NamedTuple):
    """A task for one client."""

    client: str
    task: Task


T = TypeVar("T", bound=Task)


def with_private(model: Tensor, spans: Sequence[slice], state: ClientState) -> Tensor:
    """The model a client really uses: the one it was sent, with its own private layers in place."""
    if not spans or "private" not in state:
        return model
    own = model.clone()
    scatter(own, spans, state["private"])
    return own


def replies_of(
    sites: Sequence[Worksite], vectors: Tensor, losses: Tensor, sent: int, bench: Workbench, /, **values: Sequence[Any]
) -> list[Reply]:
    """Replies carrying one row of `vectors: (clients, d)` each, with its norm and loss; `sent` numbers go up."""
    norms = torch.linalg.vector_norm(vectors[:, : bench.layout.trainable], dim=1).tolist()
    names = list(values)
    return [
        Reply(
            site.client.id,
            len(site.client.train),
            vectors[i],
            {"loss": loss, "norm": norms[i], **{name: values[name][i] for name in names}},
            up=NUMBER * (sent + 1),
        )
        for i, (site, loss) in enumerate(zip(sites, losses.tolist(), strict=True))
    ]


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
        losses, _ = bench.evaluate(data, self.models)
        # A model that has become NaN is nobody's choice, though argmin would take it for the lowest.
        choices = losses.masked_fill(losses.isnan(), torch.inf).argmin(dim=1).tolist()
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


def perform(orders: Sequence[Order], sites: Mapping[str, Worksite], bench: Workbench) -> list[Reply]:
    """Do all the orders, those of one kind together, and return the replies in the order of the orders."""
    by_kind: dict[Any, list[int]] = {}
    for position, order in enumerate(orders):
        by_kind.setdefault(order.task.kind(), []).append(position)
    replies: list[Reply | None] = [None] * len(orders)
    for positions in by_kind.values():
        tasks = [orders[p].task for p in positions]
        done = tasks[0].perform(tasks, [sites[orders[p].client] for p in positions], bench)
        for position, reply in zip(positions, done, strict=True):
            replies[position] = reply
    return [reply for reply in replies if reply is not None]
