"""The loss of an SGD step of several clients at once, and its gradient at the outputs.

Targets are laid out once for many steps, so that a step itself takes few operations: of small networks, calling the
operations is what takes time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.trainers.losses import Loss, absolute_loss, binary_loss, huber_loss, softmax_loss, squared_loss


def _squared(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    residual = outputs - targets
    return residual.square(), residual.mul_(2)


def _absolute(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    residual = outputs - targets
    return residual.abs(), residual.sign_()


def _huber(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    residual = outputs - targets
    size = residual.abs()
    return torch.where(size <= 1, residual.square() / 2, size - 0.5), residual.clamp_(-1, 1)


def _binary(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    seen = F.binary_cross_entropy_with_logits(outputs, targets.expand_as(outputs), reduction="none")
    return seen, torch.sigmoid(outputs).sub_(targets)


ELEMENTWISE: dict[Loss, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    squared_loss: _squared,
    absolute_loss: _absolute,
    huber_loss: _huber,
    binary_loss: _binary,
}
"""Losses of each output by itself: `(outputs, targets) -> (losses, derivatives)`, each of the outputs' shape."""


class Targets(NamedTuple):
    """What the outputs `(b, n, c)` of some samples are compared with."""

    aims: Tensor
    """Of cross-entropy −(the sample's weight) at its label and 0 elsewhere `(b, n, c)`; else the real targets."""
    weights: Tensor
    """The weight of each output in its client's mean `(b, n, 1)`; 0 where a row only fills up the block."""

    @classmethod
    def of(cls, loss: Loss, outputs: int, y: Tensor, rows: Tensor) -> Targets:
        """From labels `(b, n)` or reals `(b, n, outputs)`, and the weights of the samples `rows: (b, n)`."""
        weights = rows.unsqueeze(-1)
        if loss is softmax_loss:
            aims = rows.new_zeros(*rows.shape, outputs)
            return cls(aims.scatter_(-1, y.unsqueeze(-1), -weights), weights)
        return cls(y, weights / outputs)

    def steps(self, size: int) -> list[Targets]:
        """Those of each step of `size` samples, in turn."""
        return [Targets(*parts) for parts in zip(self.aims.split(size, 1), self.weights.split(size, 1), strict=True)]

    def leading(self, count: int) -> Targets:
        """Those of the first `count` clients."""
        return self if count == len(self.aims) else Targets(self.aims[:count], self.weights[:count])


FEW_CLASSES = range(4, 16)
"""Rows shorter than a vector register: torch takes their softmax number by number, but across rows all at once."""


def log_probabilities(outputs: Tensor) -> Tensor:
    """The logarithms of the classes' probabilities `(b, n, c)` for outputs `(b, n, c)`."""
    if outputs.shape[-1] in FEW_CLASSES:
        return torch.log_softmax(outputs.transpose(-1, -2).contiguous(), -2).transpose(-1, -2)
    return torch.log_softmax(outputs, -1)


def loss_gradient(loss: Loss, outputs: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """The clients' weighted losses `(b,)` and their gradients at the outputs `(b, n, c)`."""
    aims, weights = targets
    if loss is softmax_loss:
        logs = log_probabilities(outputs)
        seen = (logs * aims).sum((1, 2))
        return seen, torch.addcmul(aims, logs.exp_(), weights)
    each, grad = ELEMENTWISE[loss](outputs, aims)
    return (each * weights).sum((1, 2)), grad.mul_(weights)
