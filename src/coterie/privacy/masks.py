"""CFL's encryption (Algorithm 5): clients apply a secret permutation to every vector before the server sees it.

The turn is orthonormal (a permutation of the indices, optionally with random signs), so norms, means and cosine
similarities stay what they are, and the server's decisions with them. The server works with turned vectors
throughout; only clients can turn them back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.federation import Split
from coterie.parameters import Entry, Layout
from coterie.randomness import torch_generator
from coterie.trainers.base import Trainer, Training, TrainingJob


@dataclass(frozen=True)
class Mask:
    """An orthonormal map of vectors `(..., d)`: `hidden[i] = sign[i] · plain[order[i]]`.

    Trainable numbers and buffers are turned each among themselves, because only the former are compared.
    """

    order: Tensor
    sign: Tensor
    back: Tensor

    @classmethod
    def from_secret(cls, secret: int, layout: Layout, *, signed: bool = False) -> Mask:
        """The mask that a secret number, known to the clients only, stands for."""
        generator = torch_generator(secret, "mask")
        trainable = torch.randperm(layout.trainable, generator=generator)
        buffers = layout.trainable + torch.randperm(layout.size - layout.trainable, generator=generator)
        order = torch.cat([trainable, buffers])
        sign = torch.ones(layout.size)
        if signed:
            # Signs are for compared numbers only: a buffer such as a variance must stay what it is.
            sign[: layout.trainable] -= 2 * torch.randint(2, (layout.trainable,), generator=generator)
        return cls(order, sign, torch.argsort(order))

    def hide(self, plain: Tensor) -> Tensor:
        """Turned copies of vectors `(..., d)`."""
        return plain[..., self.order] * self.sign.to(plain.dtype)

    def reveal(self, hidden: Tensor) -> Tensor:
        """The vectors behind turned ones, exactly."""
        return (hidden * self.sign.to(hidden.dtype))[..., self.back]


class MaskedTrainer(Trainer):
    """A trainer whose every vector comes and goes transformed: what a client with the secret works on.

    Its layout has no layers: the server cannot tell them apart any more, and methods that need layers are refused.
    """

    def __init__(self, trainer: Trainer, mask: Mask) -> None:
        self.trainer, self.mask = trainer, mask
        self.layout = masked_layout(trainer.layout)

    def _updates(self, jobs: Sequence[TrainingJob], training: Training) -> tuple[Tensor, Tensor]:
        updates, losses = self.trainer._updates(self._revealed(jobs, training), training)
        return self.mask.hide(updates), losses

    def _sum(
        self, jobs: Sequence[TrainingJob], training: Training, weights: Sequence[float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        total, norms, losses = self.trainer._sum(self._revealed(jobs, training), training, weights)
        return self.mask.hide(total), norms, losses

    def _revealed(self, jobs: Sequence[TrainingJob], training: Training) -> list[TrainingJob]:
        """The jobs from what their transformed starts stand for; those that share a start still share it."""
        if training.layers:
            raise ConfigError("privacy hides the layers from the server: a method that trains some of them cannot run")
        plain: dict[Hashable, Tensor] = {}
        for job in jobs:
            key = job.start.data_ptr()
            if key not in plain:
                plain[key] = self.mask.reveal(job.start)
        return [job._replace(start=plain[job.start.data_ptr()]) for job in jobs]

    def evaluate(self, data: Sequence[Split], models: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate what the transformed models stand for."""
        return self.trainer.evaluate(data, self.mask.reveal(models))

    def gradient(self, data: Sequence[Split], model: Tensor) -> tuple[Tensor, Tensor]:
        """Transformed gradients at what the transformed model stands for."""
        gradients, losses = self.trainer.gradient(data, self.mask.reveal(model))
        return self.mask.hide(gradients), losses


def masked_layout(plain: Layout) -> Layout:
    """The layout of masked vectors: trainable numbers and buffers, without layers."""
    entries = [Entry("(masked)", (plain.trainable,), 0, plain.trainable, False)]
    if plain.size > plain.trainable:
        rest = plain.size - plain.trainable
        entries.append(Entry("(masked buffers)", (rest,), plain.trainable, plain.size, True))
    return Layout(tuple(entries))
