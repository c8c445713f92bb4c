"""The two losses of the papers, chosen by the kind of target: softmax cross-entropy for labels, squared for reals."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Loss = Callable[[Tensor, Tensor], Tensor]
"""`(outputs, targets) -> mean loss`, a scalar that autograd can follow."""


def softmax_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits `(n, ..., classes)` against labels `(n, ...)`."""
    return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))


def squared_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error of outputs against real targets of the same number of elements."""
    return F.mse_loss(outputs.reshape(targets.shape), targets)


def sample_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each sample `(n,)`, that of a batch of one; outputs: (n, ..., outputs), targets: (n, ...)."""
    if loss is softmax_loss:
        each = F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1), reduction="none")
        return each.reshape(len(targets), -1).mean(1)
    if loss is squared_loss:
        return (outputs.reshape(targets.shape) - targets).square().reshape(len(targets), -1).mean(1)
    with torch.no_grad():
        return torch.stack([loss(o[None], y[None]).reshape(()) for o, y in zip(outputs, targets, strict=True)])


def default_loss(regression: bool) -> Loss:
    """The loss for a federation's targets."""
    return squared_loss if regression else softmax_loss


OFFSET_STEPS = 8
"""Passes of iterative scaling; more change a held-out loss by less than 0.1 %."""
PSEUDO_COUNT = 0.5
"""Samples per class, spread as the model expects them, that damp every step: an absent class is not ruled out."""


def output_offset(outputs: Tensor, targets: Tensor) -> Tensor:
    """The constant `(outputs,)` that, added to a model's outputs, best explains the targets.

    It is all that a client needs of its own when its labels are only drawn in other proportions (label skew).
    outputs: (n, ..., C) logits with targets (n, ...) labels, by iterative scaling (Darroch and Ratcliff 1972); or
    outputs of the targets' size with real targets (n, ...), by the mean residual, shrunk by one sample.
    """
    if targets.is_floating_point():
        residual = targets - outputs.reshape(targets.shape)
        return residual.mean(0) * (len(targets) / (len(targets) + 1))
    logits, labels = outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
    seen = torch.bincount(labels, minlength=logits.shape[-1]).to(logits.dtype)
    expected = torch.softmax(logits, -1).sum(0)
    prior = PSEUDO_COUNT * logits.shape[-1] * expected / expected.sum()
    offset = torch.zeros_like(expected)
    for _ in range(OFFSET_STEPS):
        offset = offset + torch.log((seen + prior) / (expected + prior))
        expected = torch.softmax(logits + offset, -1).sum(0)
    return offset - offset.mean()


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many labels are predicted rightly, as a fraction; NaN for real targets, which have no accuracy."""
    if targets.is_floating_point():
        return torch.full((), float("nan"), dtype=outputs.dtype)
    # Flattened, because labels (n, 1) against predictions (n,) would be compared all with all.
    return (outputs.argmax(-1).reshape(-1) == targets.reshape(-1)).to(outputs.dtype).mean()
