"""The clients' optimisers: SGD with momentum, Adam and AdamW, for several clients side by side, as torch.optim's.

They are written out because torch.optim steps one set of parameters at a time. Each line is the one of torch's own
implementation, so that the numbers are equal (in float64 to about 1e-15); tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.trainers.base import Training

CLIP_FLOOR = 1e-6
"""What torch.nn.utils.clip_grad_norm_ adds to a norm before it divides by it."""


class Moving(NamedTuple):
    """A tensor of b clients `(b, ...)` that is trained, its gradient, and what a proximal term pulls it to.

    `place` is where it stands in the flat vector.
    """

    place: slice
    weights: Tensor
    gradient: Tensor
    centre: Tensor


class Optimizer:
    """Moves tensors of b clients along their gradients; the gradients are overwritten.

    `memories` are the clients' own states `(1 + moments · d,)`, read here and written by `remember`: the number of
    steps so far, then each moment over the flat vector. None: every client starts from zero.
    """

    def __init__(self, how: Training, moving: Sequence[Moving], memories: Sequence[Tensor] | None = None) -> None:
        self.how, self.moving, self.memories = how, moving, memories
        self.moments = [[torch.zeros_like(m.weights) for _ in range(how.moments)] for m in moving]
        self.count = 0
        self.counts: Tensor | None = None
        if memories is not None:
            self._recall(memories)

    def _recall(self, memories: Sequence[Tensor]) -> None:
        self.counts = torch.stack([memory[0] for memory in memories]).double()
        for m, moments in zip(self.moving, self.moments, strict=True):
            for slot, moment in enumerate(moments):
                for own, memory in zip(moment, memories, strict=True):
                    own.copy_(self._span(memory, slot, m.place).view(own.shape))

    def remember(self) -> None:
        """Write the state to the clients' memories, where they have some."""
        if self.memories is None or self.counts is None:
            return
        for i, memory in enumerate(self.memories):
            memory[0] = self.counts[i]
            for m, moments in zip(self.moving, self.moments, strict=True):
                for slot, moment in enumerate(moments):
                    self._span(memory, slot, m.place).copy_(moment[i].reshape(-1))

    def _span(self, memory: Tensor, slot: int, place: slice) -> Tensor:
        """The part of a memory that holds one moment of the numbers at `place`."""
        size = (len(memory) - 1) // self.how.moments
        return memory[1 + slot * size + place.start : 1 + slot * size + place.stop]

    def step(self, active: int) -> None:
        """Take a step of the first `active` clients along their gradients."""
        how = self.how
        self.count += 1
        if self.counts is not None:
            self.counts[:active] += 1
        gradients = [m.gradient[:active] for m in self.moving]
        clips = how.clip_gradient is not None and bool(gradients)
        if not clips:
            self._decay(gradients)
        if how.proximal:
            for m, gradient in zip(self.moving, gradients, strict=True):
                gradient.add_(m.weights[:active] - m.centre[:active], alpha=how.proximal)
        if clips:
            assert how.clip_gradient is not None
            clip(gradients, how.clip_gradient)
            self._decay(gradients)  # torch's optimisers add it after a clipping
        for m, gradient, moments in zip(self.moving, gradients, self.moments, strict=True):
            weights, own = m.weights[:active], [moment[:active] for moment in moments]
            if how.optimizer == "sgd":
                _sgd(how, weights, gradient, own)
            else:
                self._adam(weights, gradient, own)

    def _decay(self, gradients: Sequence[Tensor]) -> None:
        """Add weight decay to the gradients; AdamW's is no part of them."""
        if self.how.weight_decay and self.how.optimizer != "adamw":
            for m, gradient in zip(self.moving, gradients, strict=True):
                gradient.add_(m.weights[: len(gradient)], alpha=self.how.weight_decay)

    def _adam(self, weights: Tensor, gradient: Tensor, moments: Sequence[Tensor]) -> None:
        """Adam, or AdamW, which shrinks the weights by itself."""
        how, (mean, square) = self.how, moments
        beta1, beta2 = how.betas
        if how.optimizer == "adamw":
            weights.mul_(1 - how.lr * how.weight_decay)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = torch.sqrt(square, out=gradient)
        if self.counts is None:
            correction1, correction2 = 1 - beta1**self.count, (1 - beta2**self.count) ** 0.5
            weights.addcdiv_(mean, root.div_(correction2).add_(how.eps), value=-how.lr / correction1)
            return
        # Clients that keep their state have taken different numbers of steps.
        counts = self.counts[: len(weights)].view(-1, *[1] * (weights.ndim - 1))
        root.div_((1 - beta2**counts).sqrt().to(weights)).add_(how.eps)
        weights.sub_(torch.div(mean, root, out=root).mul_((how.lr / (1 - beta1**counts)).to(weights)))


def _sgd(how: Training, weights: Tensor, gradient: Tensor, moments: Sequence[Tensor]) -> None:
    """SGD, with momentum where there is a moment."""
    step = moments[0].mul_(how.momentum).add_(gradient) if moments else gradient
    weights.add_(step, alpha=-how.lr)


def clip(gradients: Sequence[Tensor], longest: float) -> None:
    """Shorten each client's gradient, which is spread over tensors `(b, ...)`, to the norm `longest`, in place."""
    norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients])
    scale = (longest / (torch.linalg.vector_norm(norms, dim=0) + CLIP_FLOOR)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(scale.view(-1, *[1] * (gradient.ndim - 1)))
