"""Comparing updates that nobody sees: projections with a key that the clients share and the server does not know.

A client trains, and of its update sends `width` numbers: the update with random signs, mixed by a Hadamard transform,
twice, and then `width` of the mixed numbers, drawn at random (a subsampled randomised Hadamard transform). Signs and
draws come from the key's stream, and are the same for all clients, so cosines are kept up to an error
(Johnson-Lindenstrauss): the cosine ρ of two updates comes out with a standard deviation of (1 − ρ²)/√width. The numbers
of single outputs, which CFL's checks compare apart, are few: they are turned by a random rotation of their own, which
keeps cosines exactly, and which part belongs to which output only the clients know. The update itself goes only into
its cluster's sum.

The stream depends on the model that is trained from, so that every check has projections of its own: the server knows
the projection of every sum that it opens, and many such pairs under one projection would give the projection away.

What the server learns: cosines and, from the numbers' size, norms. What it could learn with the key: a projection of an
update on `width` directions and the last layer's numbers, so whoever has the key must not be the server.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.parameters import Layout
from coterie.privacy.keys import permutation, signs, uniforms
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
    tensor_key,
)
from coterie.tasks.halves import PART_WIDTH, HalfUpdates, output_parts, part_width
from coterie.tasks.wire import checksum
from coterie.trainers.base import Trainer, Training, TrainingJob

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


def turn(vectors: Tensor, key: bytes, width: int, name: str) -> Tensor:
    """Vectors `(n, d)` under a keyed rotation, uniform over all of them, in float32 `(n, min(d, width))`.

    Up to `width` numbers inner products are kept exactly, beyond in expectation.
    """
    from scipy.special import ndtri

    d = vectors.shape[1]
    kept = min(d, width)
    drawn = ndtri(uniforms(key, f"rotation/{name}", d * kept) + 2.0**-54).reshape(d, kept)
    columns, upper = np.linalg.qr(drawn)
    rotation = torch.from_numpy(columns * np.sign(np.diag(upper)) * (d / kept) ** 0.5)
    return (vectors.double() @ rotation).float()


def project_parts(vectors: Tensor, layout: Layout, key: bytes, width: int, most: int, name: str) -> Tensor:
    """Keyed projections of vectors `(n, trainable)`: of the whole, then of each output's numbers, in a secret order.

    float32 `(n, width + parts · part_width)`. The order of the parts is the same under every `name`.
    """
    parts = output_parts(layout, most)
    found = [project(vectors, key, width, name)]
    for i in permutation(key, "projection/parts", len(parts)):
        own = vectors.new_zeros(len(vectors), max(map(len, parts)))
        own[:, : len(parts[i])] = vectors[:, parts[i]]
        found.append(turn(own, key, PART_WIDTH, f"{name}/{i}"))
    return torch.cat(found, 1)


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
        key = _key_of(trainer)
        jobs = [TrainingJob(c.client.train, task.model, task.seed) for task, c in zip(tasks, contexts, strict=True)]
        trained = trainer.train(jobs, self.training)
        assert trained.vectors is not None
        found: dict[int, Tensor] = {}
        for own in _by_model([task.model for task in tasks]):
            vectors = trained.vectors[own, : trainer.layout.trainable]
            rows = project(vectors, key, self.width, checksum(tasks[own[0]].model))
            found |= dict(zip(own, rows, strict=True))
        replies = [
            Reply(context.client.id, len(context.client.train), None, {"loss": loss, "projection": found[i].tolist()})
            for i, (context, loss) in enumerate(zip(contexts, trained.losses.tolist(), strict=True))
        ]
        return ReplyBlock(replies, {})

    def batch_key(self) -> tuple[type, Training, int]:
        return Compare, self.training, self.width


@dataclass(frozen=True)
class CompareHalves(HalfUpdates):
    """Train on two halves as `HalfUpdates` does, and send keyed projections `(2, …)` in place of the two updates.

    They are of the whole update, `width` numbers, and of the numbers of single outputs, in `parts` parts at most.
    """

    width: int
    parts: int

    def schema(self, layout: Layout) -> ReplySchema:
        parts = output_parts(layout, self.parts)
        shape = 2, self.width + len(parts) * part_width(parts)
        return ReplySchema(None, {**super().schema(layout).values, "projections": Array(shape)})

    def batch_key(self) -> Hashable:
        return CompareHalves, self.training, self.width, self.parts

    def perform(
        self,
        tasks: Sequence[CompareHalves],  # type: ignore[override]
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        key, layout = _key_of(trainer), trainer.layout
        replies = list(super().perform(tasks, contexts, trainer).replies)
        for own in _by_model([task.model for task in tasks]):
            vectors = [replies[i].vector for i in own]
            rows = torch.stack([v for v in vectors if v is not None]).reshape(2 * len(own), -1)[:, : layout.trainable]
            found = project_parts(rows, layout, key, self.width, self.parts, checksum(tasks[own[0]].model))
            for i, pair in zip(own, found.split(2), strict=True):
                values = {name: replies[i].values[name] for name in ("loss", "whole")}
                replies[i] = replace(replies[i], vector=None, values=values | {"projections": pair})
        return ReplyBlock(replies, {})


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
