"""Comparing updates that stay unseen: projections with a key that the clients share and the server does not know.

A client trains, and of its update sends `width` numbers: the update with random signs, mixed by a Hadamard transform,
twice, and then `width` of the mixed numbers, drawn at random (a subsampled randomised Hadamard transform). Signs and
draws come from the key's stream, and are the same for all clients, so cosines are kept up to an error
(Johnson-Lindenstrauss): the cosine ρ of two updates comes out with a standard deviation of (1 − ρ²)/√width. The update
itself goes only into its cluster's sum.

The stream depends on the model that is trained from, so that every check has projections of its own: the server knows
the projection of every sum that it opens, and many such pairs under one projection would give the projection away.

What the server learns: cosines and, from the numbers' size, norms. What it could learn with the key: a projection of an
update on `width` directions, so whoever has the key must not be the server.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

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
    Reply,
    ReplySchema,
    Sent,
    Task,
    tensor_key,
    training_jobs,
)
from coterie.tasks.halves import HalfUpdates
from coterie.tasks.wire import checksum
from coterie.trainers.base import Trainer, Training

FACTOR = 64
"""A Hadamard transform is done as products with matrices up to this size: of 16 to 512 the fastest for 2^18 numbers."""


def project(vectors: Tensor, key: bytes, width: int, name: str = "") -> Tensor:
    """Keyed projections `(n, width)` of vectors `(n, d)` in float32; inner products are kept in expectation.

    Projections of one `name` are comparable with each other, and with no others.
    """
    d = vectors.shape[1]
    size = check_width(width, d)
    turns = [torch.from_numpy(signs(key, f"projection/{name}/{i}", size)).double() for i in (1, 2)]
    drawn = torch.from_numpy(np.sort(permutation(key, f"projection/{name}", size)[:width]))
    rows = []
    for vector in vectors:
        mixed = torch.zeros(size, dtype=torch.float64)
        mixed[:d] = vector
        for turn in turns:
            mixed = hadamard(mixed * turn)
        rows.append(mixed[drawn] * (size / width) ** 0.5)
    return torch.stack(rows).float()


def check_width(width: int, d: int) -> int:
    """How many mixed numbers a vector of `d` has; ConfigError where these are fewer than `width`."""
    size = 1 << max(1, d - 1).bit_length()
    if width > size:
        raise ConfigError(f"projection={width} is more than the {size} mixed numbers of a model with {d}: use fewer")
    return size


def hadamard(vector: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of a vector `(2^m,)`."""
    size, step = len(vector), 1
    while step < size:
        factor = min(FACTOR, size // step)
        matrix = _hadamard_matrix(factor).to(vector.dtype)
        # The first product is one of matrices too: as many products with single vectors it takes ten times as long.
        vector = vector.view(-1, factor) @ matrix if step == 1 else matrix @ vector.view(-1, factor, step)
        step *= factor
    scaled: Tensor = vector.view(-1) / size**0.5
    return scaled


def _hadamard_matrix(size: int) -> Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.kron(matrix, torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    return matrix


@dataclass(frozen=True)
class Compare(Task):
    """Train as `Train` does with the same fields, and send the keyed projection of the update in its place."""

    model: Annotated[Tensor, Sent()]
    training: Training
    seed: int
    width: int

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"loss": Number(), "projection": Array((self.width,))})

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        key = _key_of(trainer)
        trained = trainer.train(training_jobs(tasks, contexts, [task.model for task in tasks]), self.training)
        assert trained.vectors is not None
        found: dict[int, Tensor] = {}
        for own in _by_model([task.model for task in tasks]):
            vectors = trained.vectors[own, : trainer.layout.trainable]
            rows = project(vectors, key, self.width, checksum(tasks[own[0]].model))
            found |= dict(zip(own, rows, strict=True))
        return [
            Reply(context.client.id, len(context.client.train), None, {"loss": loss, "projection": found[i].tolist()})
            for i, (context, loss) in enumerate(zip(contexts, trained.losses.tolist(), strict=True))
        ]

    def batch_key(self) -> tuple[type, Training, int]:
        return Compare, self.training, self.width


@dataclass(frozen=True)
class CompareHalves(HalfUpdates):
    """Train on two halves as `HalfUpdates` does, and send keyed projections `(2, width)` of the two updates."""

    width: int

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"loss": Number(), "projections": Array((2, self.width))})

    def batch_key(self) -> Hashable:
        return CompareHalves, self.training, self.width

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        key, trainable = _key_of(trainer), trainer.layout.trainable
        replies = super().answers(tasks, contexts, trainer)
        for own in _by_model([task.model for task in tasks]):
            vectors = [replies[i].vector for i in own]
            rows = torch.stack([v for v in vectors if v is not None]).reshape(2 * len(own), -1)[:, :trainable]
            found = project(rows, key, self.width, checksum(tasks[own[0]].model))
            for i, pair in zip(own, found.split(2), strict=True):
                values = {"loss": replies[i].values["loss"], "projections": pair}
                replies[i] = replace(replies[i], vector=None, values=values)
        return replies


def _key_of(trainer: Trainer) -> bytes:
    if trainer.key is None:
        raise ConfigError("updates are to be compared by a secret projection, and this client holds no secret")
    return trainer.key


def _by_model(models: Sequence[Tensor]) -> list[list[int]]:
    """Positions of models that are the same."""
    groups: dict[Hashable, list[int]] = {}
    for i, model in enumerate(models):
        groups.setdefault(tensor_key(model), []).append(i)
    return list(groups.values())
