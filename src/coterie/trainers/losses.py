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


def default_loss(regression: bool) -> Loss:
    """The loss for a federation's targets."""
    return squared_loss if regression else softmax_loss


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many labels are predicted rightly, as a fraction; NaN for real targets, which have no accuracy."""
    if targets.is_floating_point():
        return torch.full((), float("nan"), dtype=outputs.dtype)
    # Flattened, because labels (n, 1) against predictions (n,) would be compared all with all.
    return (outputs.argmax(-1).reshape(-1) == targets.reshape(-1)).to(outputs.dtype).mean()
