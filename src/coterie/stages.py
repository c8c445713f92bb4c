"""FedCUAU's two kinds of client work: one update of a fresh model, and training in stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.messages import NUMBER, Reply, Worksite, replies_of
from coterie.parameters import Layout, gather, scatter, span_size
from coterie.tasks import Train, with_private
from coterie.workbench import Job, Training, Workbench

SEED = 8  # bytes of a seed on the wire


@dataclass(frozen=True)
class LayerUpdate:
    """Train all layers of a freshly initialised `model` `(d,)` and send the update of the named layers only.

    A client can draw the initial model from a seed by itself, so that a seed is all that is sent to it.
    """

    model: Tensor
    training: Training
    seed: int
    layers: str | tuple[str, ...] = "last"

    def kind(self) -> tuple[Any, ...]:
        return (LayerUpdate, self.training, self.layers)

    def down(self, layout: Layout) -> int:
        return SEED

    def perform(self, tasks: Sequence[LayerUpdate], sites: Sequence[Worksite], bench: Workbench) -> list[Reply]:
        spans = trainable_spans(bench.layout, self.layers)
        jobs = [Job(site.client.train, task.model, task.seed) for task, site in zip(tasks, sites, strict=True)]
        updates, losses = bench.train(jobs, self.training)
        replies = replies_of(sites, gather(updates, spans), losses, span_size(spans), bench)
        return [replace(reply, up=NUMBER * span_size(spans)) for reply in replies]


def trainable_spans(layout: Layout, layers: str | tuple[str, ...]) -> tuple[slice, ...]:
    """The places of the named layers without their buffers."""
    end = layout.trainable
    return tuple(slice(span.start, min(span.stop, end)) for span in layout.select(layers) if span.start < end)


@dataclass(frozen=True)
class StagedTraining:
    """Train `model` `(d,)` as `Train` does; then, all else frozen, each row of `specific` `(rows, h)` in its place.

    The rows are values of `layers` (h numbers in all): w^Cj for j = i … C−1, where the client is of cluster i and
    the model itself holds w^CC. Each starts beside the shared and private layers that the client has just trained,
    sees the same batches, and is the only thing that learns. The reply's vector is the update of `model` followed by
    the rows' updates, `(d + rows · h,)`.
    """

    model: Tensor
    specific: Tensor
    layers: tuple[str, ...]
    training: Training
    seed: int
    private: tuple[str, ...] = ()

    def kind(self) -> tuple[Any, ...]:
        # Clients of all clusters are trained together first, exactly as the base method would train them.
        return (StagedTraining, self.training, self.layers, self.private)

    def down(self, layout: Layout) -> int:
        return NUMBER * (layout.size - span_size(layout.select(self.private)) + self.specific.numel())

    def perform(self, tasks: Sequence[StagedTraining], sites: Sequence[Worksite], bench: Workbench) -> list[Reply]:
        base = [Train(task.model, task.training, task.seed, task.private) for task in tasks]
        replies = base[0].perform(base, sites, bench)
        private, places = bench.layout.select(self.private), bench.layout.select(self.layers)
        trained = [
            with_private(task.model + _vector(reply), private, site.state)
            for task, reply, site in zip(tasks, replies, sites, strict=True)
        ]
        pieces = [[_vector(reply)] for reply in replies]
        alone = replace(self.training, layers=self.layers)
        for row in range(max(len(task.specific) for task in tasks)):
            those = [i for i, task in enumerate(tasks) if row < len(task.specific)]
            jobs = []
            for i in those:
                start = trained[i].clone()
                scatter(start, places, tasks[i].specific[row])
                jobs.append(Job(sites[i].client.train, start, tasks[i].seed))
            updates, _ = bench.train(jobs, alone)
            for i, update in zip(those, gather(updates, places), strict=True):
                pieces[i].append(update)
        return [_joined(reply, parts) for reply, parts in zip(replies, pieces, strict=True)]


def _vector(reply: Reply) -> Tensor:
    assert reply.vector is not None
    return reply.vector


def _joined(reply: Reply, parts: Sequence[Tensor]) -> Reply:
    """The reply with all its updates in one vector; its norm is that of the first, or NaN where a later one broke."""
    rows = torch.cat([*parts[1:], parts[0][:0]])
    norm = reply.norm if torch.isfinite(rows).all() else float("nan")
    return replace(
        reply,
        vector=torch.cat([parts[0], rows]),
        values={**reply.values, "norm": norm},
        up=reply.up + NUMBER * rows.numel(),
    )
