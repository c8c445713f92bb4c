"""Comparing updates that nobody sees: a projection with a key that the clients share and the server does not know.

A client trains, and of its update sends `width` numbers: the update with random signs, mixed by a Hadamard transform,
twice, and then `width` of the mixed numbers, drawn at random (a subsampled randomised Hadamard transform). Signs and
draws come from the key's stream, and are the same for all clients, so cosines are kept up to an error
(Johnson-Lindenstrauss): the cosine ρ of two updates comes out with a standard deviation of (1 − ρ²)/√width. The
update itself goes only into its cluster's sum.

What the server learns: cosines and, from the numbers' size, norms. What it could learn with the key: a projection of an
update on `width` directions, so whoever has the key must not be the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.parameters import Layout
from coterie.privacy.keys import permutation, signs
from coterie.tasks.base import (
    Array,
    ClientContext,
    Number,
    Reduction,
    Reply,
    ReplyBlock,
    ReplySchema,
    Sent,
    Task,
)
from coterie.trainers.base import Trainer, Training, TrainingJob


def project(vectors: Tensor, key: bytes, width: int) -> Tensor:
    """Keyed projections `(n, width)` of vectors `(n, d)` in float32; inner products are kept in expectation."""
    d = vectors.shape[1]
    size = 1 << max(1, d - 1).bit_length()
    if width > size:
        raise ConfigError(f"projection={width} is more than the {size} mixed numbers of a model with {d}: use fewer")
    turns = [torch.from_numpy(signs(key, f"projection/{i}", size)).double() for i in (1, 2)]
    drawn = torch.from_numpy(np.sort(permutation(key, "projection", size)[:width]))
    rows = []
    for vector in vectors:
        mixed = torch.zeros(size, dtype=torch.float64)
        mixed[:d] = vector
        for turn in turns:
            mixed = hadamard(mixed * turn)
        rows.append(mixed[drawn] * (size / width) ** 0.5)
    return torch.stack(rows).float()


def hadamard(vector: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of a vector `(2^m,)`."""
    size, step = len(vector), 1
    while step < size:
        pairs = vector.view(-1, 2, step)
        vector = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], dim=1).view(-1)
        step *= 2
    scaled: Tensor = vector / size**0.5
    return scaled


@dataclass(frozen=True)
class Compare(Task):
    """Train as `Train` does with the same fields, and send the keyed projection of the update in its place."""

    model: Annotated[Tensor, Sent()]
    training: Training
    seed: int
    width: int

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"loss": Number(), "projection": Array((self.width,))})

    def perform(
        self,
        tasks: Sequence[Compare],
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        if trainer.key is None:
            raise ConfigError("updates are to be compared by a secret projection, and this client holds no secret")
        jobs = [TrainingJob(c.client.train, task.model, task.seed) for task, c in zip(tasks, contexts, strict=True)]
        trained = trainer.train(jobs, self.training)
        assert trained.vectors is not None
        found = project(trained.vectors[:, : trainer.layout.trainable], trainer.key, self.width)
        replies = [
            Reply(context.client.id, len(context.client.train), None, {"loss": loss, "projection": row})
            for context, loss, row in zip(contexts, trained.losses.tolist(), found.tolist(), strict=True)
        ]
        return ReplyBlock(replies, {})

    def batch_key(self) -> tuple[type, Training, int]:
        return Compare, self.training, self.width
