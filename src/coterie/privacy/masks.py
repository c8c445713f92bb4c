"""CFL's encryption (Algorithm 5): clients share a secret and turn every vector before the server sees it.

The turn is orthonormal (a permutation of the indices, optionally with random signs), so norms, means and cosine
similarities stay what they are, and the server's decisions with them. The server works with turned vectors
throughout; only clients can turn them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.federation import Split
from coterie.parameters import Entry, Layout
from coterie.randomness import torch_generator
from coterie.workbench import Job, Training, Workbench, train_sum


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


class MaskedBench:
    """A workbench whose every vector comes and goes turned: what a client with the secret works on.

    Its layout has no layers: the server cannot tell them apart any more, and methods that need layers are refused.
    """

    def __init__(self, bench: Workbench, mask: Mask) -> None:
        self.bench, self.mask = bench, mask
        plain = bench.layout
        entries = [Entry("(turned)", (plain.trainable,), 0, plain.trainable, False)]
        if plain.size > plain.trainable:
            rest = plain.size - plain.trainable
            entries.append(Entry("(turned buffers)", (rest,), plain.trainable, plain.size, True))
        self.layout = Layout(tuple(entries))

    def train(self, jobs: Sequence[Job], training: Training) -> tuple[Tensor, Tensor]:
        """Train from what the turned starts stand for; the updates are turned."""
        updates, losses = self.bench.train(self._opened(jobs, training), training)
        return self.mask.hide(updates), losses

    def train_sum(
        self, jobs: Sequence[Job], training: Training, weights: Sequence[float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Train as `train` does; the sum of the updates is turned."""
        total, norms, losses = train_sum(self.bench, self._opened(jobs, training), training, weights)
        return self.mask.hide(total), norms, losses

    def _opened(self, jobs: Sequence[Job], training: Training) -> list[Job]:
        if training.layers:
            raise ConfigError("privacy hides the layers from the server: a method that trains some of them cannot run")
        plain: dict[int, Tensor] = {}
        for job in jobs:
            if id(job.start) not in plain:
                plain[id(job.start)] = self.mask.reveal(job.start)
        return [Job(job.data, plain[id(job.start)], job.seed) for job in jobs]

    def evaluate(self, data: Sequence[Split], models: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate what the turned models stand for."""
        return self.bench.evaluate(data, self.mask.reveal(models))

    def gradient(self, data: Sequence[Split], model: Tensor) -> tuple[Tensor, Tensor]:
        """Turned gradients at what the turned model stands for."""
        gradients, losses = self.bench.gradient(data, self.mask.reveal(model))
        return self.mask.hide(gradients), losses
