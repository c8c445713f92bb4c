"""Half-updates of very many clients: each sends sketches, so that nobody has to hold the updates of all."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from coterie.clustering.sketch import fold
from coterie.parameters import Layout
from coterie.tasks.base import Array, ClientContext, Reduction, Reply, ReplyBlock, ReplySchema
from coterie.tasks.halves import PART_WIDTH, HalfUpdates, output_parts, part_width
from coterie.trainers.base import Trainer


def sketched_parts(vectors: Tensor, layout: Layout, width: int, most: int) -> Tensor:
    """Sketches of vectors `(n, trainable)`: of the whole, then of each output's numbers, in `most` parts at most.

    float32 `(n, min(width, trainable) + parts · part_width)`.
    """
    parts = output_parts(layout, most)
    found = [fold(vectors, width)]
    for part in parts:
        own = vectors.new_zeros(len(vectors), max(map(len, parts)))
        own[:, : len(part)] = vectors[:, part]
        found.append(fold(own, PART_WIDTH))
    return torch.cat(found, 1)


def _without_norm(reply: Reply) -> dict[str, Any]:
    """A reply's values but the norm of its vector, which is not sent."""
    return {name: value for name, value in reply.values.items() if name != "norm"}


@dataclass(frozen=True)
class SketchHalves(HalfUpdates):
    """Train on two halves as `HalfUpdates` does, and send sketches `(2, …)` in place of the two updates.

    They are of the whole update, `width` numbers, and of the numbers of single outputs, in `parts` parts at most. How
    a sketch is made is no secret: it saves room, and hides nothing.
    """

    width: int
    parts: int

    def schema(self, layout: Layout) -> ReplySchema:
        parts = output_parts(layout, self.parts)
        shape = 2, min(self.width, layout.trainable) + len(parts) * part_width(parts)
        return ReplySchema(None, {**super().schema(layout).values, "projections": Array(shape)})

    def batch_key(self) -> Hashable:
        return SketchHalves, self.training, self.width, self.parts

    def perform(
        self,
        tasks: Sequence[SketchHalves],  # type: ignore[override]
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        replies = list(super().perform(tasks, contexts, trainer).replies)
        layout = trainer.layout
        vectors = torch.stack([reply.vector for reply in replies if reply.vector is not None])
        rows = vectors.reshape(2 * len(replies), -1)[:, : layout.trainable]
        sketches = sketched_parts(rows, layout, self.width, self.parts).split(2)
        return ReplyBlock(
            [
                replace(reply, vector=None, values=_without_norm(reply) | {"projections": pair})
                for reply, pair in zip(replies, sketches, strict=True)
            ],
            {},
        )
