"""What passes between server and clients: an order with its task, a reply with its vector, and sums of many replies.

A weighted sum is formed where the vectors are made, so that they need not travel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from coterie.federation import Client
from coterie.parameters import Layout
from coterie.workbench import Job, Training, Workbench, train_sum

NUMBER = 4  # bytes of one float32 on the wire


class Due(NamedTuple):
    """How a reply's vector counts: its weight, and the sum it goes to."""

    weight: float
    group: int = 0


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


class Share(NamedTuple):
    """Replies without their vectors, and by group the vectors' weighted sum `(d,)` in float64.

    A vector that is not finite is in no sum; its reply's norm shows it.
    """

    replies: list[Reply]
    sums: dict[int, Tensor]


class Order(NamedTuple):
    """A task for one client."""

    client: str
    task: Task


def replies_of(
    sites: Sequence[Worksite], vectors: Tensor, losses: Tensor, sent: int, bench: Workbench, /, **values: Sequence[Any]
) -> list[Reply]:
    """Replies carrying one row of `vectors: (clients, d)` each, with its norm and loss; `sent` numbers go up."""
    norms = torch.linalg.vector_norm(vectors[:, : bench.layout.trainable], dim=1)
    replies = reports_of(sites, norms, losses, sent, **values)
    return [replace(reply, vector=vector) for reply, vector in zip(replies, vectors, strict=True)]


def reports_of(
    sites: Sequence[Worksite], norms: Tensor, losses: Tensor, sent: int, /, **values: Sequence[Any]
) -> list[Reply]:
    """Replies that tell of one vector each, its norm and loss, without carrying it; `sent` numbers go up."""
    names = list(values)
    return [
        Reply(
            site.client.id,
            len(site.client.train),
            values={"loss": loss, "norm": norm, **{name: values[name][i] for name in names}},
            up=NUMBER * (sent + 1),
        )
        for i, (site, norm, loss) in enumerate(zip(sites, norms.tolist(), losses.tolist(), strict=True))
    ]


def added_up(replies: Sequence[Reply], bill: Sequence[Due]) -> Share:
    """The replies without their vectors, and the vectors' sums by group: the bill's, or the one a reply chose."""
    sums: dict[int, Tensor] = {}
    told = []
    for reply, due in zip(replies, bill, strict=True):
        group = due.group or reply.group
        told.append(replace(reply, vector=None, group=group))
        if reply.vector is not None and math.isfinite(reply.norm):
            if group not in sums:
                sums[group] = torch.zeros(len(reply.vector), dtype=torch.float64)
            sums[group].add_(reply.vector, alpha=due.weight)
    return Share(told, sums)


def sums_of_training(
    bench: Workbench, jobs: Sequence[Job], training: Training, bill: Sequence[Due]
) -> tuple[dict[int, Tensor], Tensor, Tensor]:
    """Train every job: the updates' weighted sums by group, and each job's update norm and mean loss `(jobs,)`."""
    norms, losses = torch.empty(2, len(jobs), dtype=torch.float64)
    sums: dict[int, Tensor] = {}
    for group in sorted({due.group for due in bill}):
        rows = [i for i, due in enumerate(bill) if due.group == group]
        weights = [bill[i].weight for i in rows]
        sums[group], norms[rows], losses[rows] = train_sum(bench, [jobs[i] for i in rows], training, weights)
    return sums, norms, losses
