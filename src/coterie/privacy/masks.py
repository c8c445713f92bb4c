"""CFL's encryption (Algorithm 5): clients apply a secret permutation to every vector before the server sees it.

The turn is orthonormal (a permutation of the indices, optionally with random signs), so norms, means and cosine
similarities stay what they are, and the server's decisions with them. The server works with turned vectors
throughout; only clients can turn them back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.federation import Split
from coterie.parameters import Entry, Layout
from coterie.privacy.keys import Secret, make_key, permutation, signs, uniforms
from coterie.trainers.base import OutputSink, Trainer, Training, TrainingJob

MASKED = "(masked)"
"""The one layer of a masked vector."""


@dataclass(frozen=True)
class Mask:
    """An orthonormal map of vectors `(..., d)`: `hidden[i] = sign[i] · plain[order[i]]`.

    Trainable numbers and buffers are turned each among themselves, because only the former are compared.

    What it does not hide: the multiset of a vector's numbers (their sizes distinguish layers), which places are zero or
    never change (a pixel that is always blank leaves its weights alone), and anything from who has the secret. All
    clients share one. Whoever knows a vector before and after the mask, even in part, reads that part of the mask off.
    """

    order: Tensor
    sign: Tensor
    back: Tensor

    @classmethod
    def from_secret(cls, secret: Secret, layout: Layout, *, signed: bool = False) -> Mask:
        """The mask that a secret, known to the clients only, stands for."""
        key = make_key(secret)
        buffers = layout.size - layout.trainable
        order = np.concatenate(
            [permutation(key, "order", layout.trainable), layout.trainable + permutation(key, "buffers", buffers)]
        )
        sign = torch.ones(layout.size)
        if signed:
            # Signs are for compared numbers only: a buffer such as a variance must stay what it is.
            sign[: layout.trainable] = torch.from_numpy(signs(key, "signs", layout.trainable)).float()
        places = torch.from_numpy(order)
        return cls(places, sign, torch.argsort(places))

    def hide(self, plain: Tensor) -> Tensor:
        """Turned copies of vectors `(..., d)`."""
        return plain[..., self.order] * self.sign.to(plain.dtype)

    def reveal(self, hidden: Tensor) -> Tensor:
        """The vectors behind turned ones, exactly."""
        return (hidden * self.sign.to(hidden.dtype))[..., self.back]


class MaskedTrainer(Trainer):
    """A trainer whose every vector comes and goes transformed: what a client with the secret works on.

    Its layout has no layers: the server cannot distinguish them any more, and methods that need layers are refused.
    """

    masked = True

    def __init__(self, trainer: Trainer, mask: Mask) -> None:
        self.trainer, self.mask = trainer, mask
        self.layout = masked_layout(trainer.layout)
        self.loss, self.dtype = trainer.loss, trainer.dtype
        self.metrics, self.description = trainer.metrics, trainer.description

    def _updates(self, jobs: Sequence[TrainingJob], training: Training) -> tuple[Tensor, Tensor]:
        updates, losses = self.trainer._updates(self._revealed(jobs, training), training)
        return self.mask.hide(updates), losses

    def _sum(
        self, jobs: Sequence[TrainingJob], training: Training, weights: Sequence[float], total: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        total, norms, losses = self.trainer._sum(self._revealed(jobs, training), training, weights)
        return self.mask.hide(total), norms, losses

    def _revealed(self, jobs: Sequence[TrainingJob], training: Training) -> list[TrainingJob]:
        """The jobs from what their transformed starts stand for; those that share a start still share it."""
        if training.layers:
            raise ConfigError("privacy hides the layers from the server: a method that trains some of them cannot run")
        plain: dict[Hashable, Tensor] = {}
        for vector in [vector for job in jobs for vector in (job.start, job.centre) if vector is not None]:
            if vector.data_ptr() not in plain:
                plain[vector.data_ptr()] = self.mask.reveal(vector)
        return [
            job._replace(
                start=plain[job.start.data_ptr()],
                centre=None if job.centre is None else plain[job.centre.data_ptr()],
            )
            for job in jobs
        ]

    def evaluate(
        self, data: Sequence[Split], models: Tensor, outputs_to: OutputSink | None = None
    ) -> tuple[Tensor, Tensor]:
        """Evaluate what the transformed models stand for."""
        return self.trainer.evaluate(data, self.mask.reveal(models), outputs_to)

    def gradient(self, data: Sequence[Split], model: Tensor) -> tuple[Tensor, Tensor]:
        """Transformed gradients at what the transformed model stands for."""
        gradients, losses = self.trainer.gradient(data, self.mask.reveal(model))
        return self.mask.hide(gradients), losses

    def outputs(self, data: Split, models: Tensor) -> Tensor:
        """What the models behind the transformed ones say of a client's samples."""
        return self.trainer.outputs(data, self.mask.reveal(models))

    def with_offsets(self, model: Tensor, offsets: Tensor, data: Split) -> Tensor:
        """The transformed models, shifted behind the transform."""
        return self.mask.hide(self.trainer.with_offsets(self.mask.reveal(model), offsets, data))


def redrawn(model: Tensor, layout: Layout, secret: Secret, seed: int) -> Tensor:
    """An initial model `(d,)` redrawn from the secret, every tensor from the distribution of its own numbers.

    The draw it comes from has 32 bits, so a server could try all of them, find the one with the numbers that it sees
    masked, and read the mask off. Here each number is a random quantile of its tensor's, 53 bits of the key's stream.
    """
    key, after = make_key(secret), model.clone()
    for entry in layout.entries:
        if entry.buffer or entry.stop - entry.start < 2:
            continue
        ranked = np.sort(model[entry.start : entry.stop].double().numpy())
        at = uniforms(key, f"model/{seed}/{entry.name}", len(ranked))
        drawn = np.interp(at, np.linspace(0, 1, len(ranked)), ranked)
        after[entry.start : entry.stop] = torch.from_numpy(drawn).to(model.dtype)
    return after


def masked_layout(plain: Layout) -> Layout:
    """The layout of masked vectors: trainable numbers and buffers, without layers."""
    entries = [Entry(MASKED, (plain.trainable,), 0, plain.trainable, False)]
    if plain.size > plain.trainable:
        rest = plain.size - plain.trainable
        entries.append(Entry("(masked buffers)", (rest,), plain.trainable, plain.size, True))
    return Layout(tuple(entries))
