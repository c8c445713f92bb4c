"""Losses by name. By default the targets decide: softmax cross-entropy for labels, the squared error for reals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.errors import ConfigError, did_you_mean
from coterie.models.custom import find_callable

Loss = Callable[[Tensor, Tensor], Tensor]
"""`(outputs, targets) -> mean loss`, a scalar that autograd can follow."""


def softmax_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits `(n, ..., classes)` against labels `(n, ...)`."""
    return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))


def squared_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error of outputs against real targets of the same number of elements."""
    return F.mse_loss(outputs.reshape(targets.shape), targets)


def sample_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each sample under each of k models `(k, n)`, that of a batch of one.

    outputs: (k, n, ..., outputs), targets: (n, ...).
    """
    models, samples = outputs.shape[:2]
    each = targets.expand(models, *targets.shape).flatten(0, 1)
    return _element_losses(loss, outputs.flatten(0, 1), each).mean(1).reshape(models, samples)


def _element_losses(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each target of each sample `(n, targets)`; of a loss of one's own that of each sample `(n, 1)`."""
    if loss is softmax_loss:
        each = F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1), reduction="none")
        return each.reshape(len(targets), -1)
    if loss is squared_loss:
        return (outputs.reshape(targets.shape) - targets).square().reshape(len(targets), -1)
    if loss is absolute_loss:
        return (outputs.reshape(targets.shape) - targets).abs().reshape(len(targets), -1)
    if loss is huber_loss:
        return F.huber_loss(outputs.reshape(targets.shape), targets, reduction="none").reshape(len(targets), -1)
    if loss is binary_loss:
        each = F.binary_cross_entropy_with_logits(
            outputs.reshape(targets.shape), targets.to(outputs.dtype), reduction="none"
        )
        return each.reshape(len(targets), -1)
    return torch.stack([loss(o[None], y[None]).reshape(1) for o, y in zip(outputs, targets, strict=True)])


def absolute_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error of outputs against real targets of the same number of elements."""
    return F.l1_loss(outputs.reshape(targets.shape), targets)


def huber_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Huber's loss with δ = 1: squared for small errors, absolute for large ones."""
    return F.huber_loss(outputs.reshape(targets.shape), targets)


def binary_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean binary cross-entropy of logits against 0 or 1, whole or real, of the same number of elements."""
    return F.binary_cross_entropy_with_logits(outputs.reshape(targets.shape), targets.to(outputs.dtype))


LOSSES: dict[str, Loss] = {
    "cross-entropy": softmax_loss,
    "mse": squared_loss,
    "mae": absolute_loss,
    "l1": absolute_loss,
    "huber": huber_loss,
    "bce": binary_loss,
}
FOR_LABELS = (softmax_loss, binary_loss)
"""Losses of ours that take labels; the others of ours take real numbers."""


def find_loss(spec: str) -> Loss:
    """The loss of that name, or the function that `package.module:function` or `path/to/file.py:function` names."""
    if spec in LOSSES:
        return LOSSES[spec]
    if ":" not in spec:
        raise ConfigError(f"loss={spec!r}: {did_you_mean(spec, LOSSES)}, or give module:function")
    return find_callable(spec, "loss")


def default_loss(regression: bool) -> Loss:
    """The loss for a federation's targets."""
    return squared_loss if regression else softmax_loss


def one_logit(loss: Loss | None, classes: int) -> bool:
    """Whether a model for this number of classes has one output, the logit of the second class."""
    return loss is binary_loss and 0 < classes <= 2


def class_weights_of(given: Sequence[float] | str, targets: Tensor) -> Tensor:
    """The weight of each class, float64: those given, or for "balanced" n / (classes · n_class) of these labels.

    Classes that are not among the labels weigh nothing, and are not counted among the classes.
    """
    if not isinstance(given, str):
        return torch.tensor(given, dtype=torch.float64)
    counts = torch.bincount(targets.reshape(-1)).double()
    weights = targets.numel() / (counts.count_nonzero() * counts)
    return weights.masked_fill(counts == 0, 0.0)


def weighted_loss(loss: Loss, weights: Tensor) -> Loss:
    """Cross-entropy, of logits or of one, as the mean with each sample weighing as its class: Σ w_y l / Σ w_y."""
    if loss is not softmax_loss and loss is not binary_loss:
        raise ConfigError("class_weights goes with loss='cross-entropy' or 'bce': another loss weighs by itself")

    def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
        # A client with few labels knows weights for those alone.
        padded = F.pad(weights, (0, outputs.shape[-1] - len(weights)))
        return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1), weight=padded)

    def binary(outputs: Tensor, targets: Tensor) -> Tensor:
        each = _element_losses(loss, outputs, targets)
        own = weights[targets.long()].reshape(each.shape)
        return (each * own).sum() / own.sum()

    return cross_entropy if loss is softmax_loss else binary


def sample_weighted_loss(
    loss: Loss, outputs: Tensor, targets: Tensor, weights: Tensor, classes: Tensor | None = None
) -> Tensor:
    """The mean over n samples of each one's weight `(n,)` times its loss; weights of one give the loss itself.

    With weights of `classes` the mean is that of `weighted_loss`: Σ c_y w l / Σ c_y.
    """
    each = _element_losses(loss, outputs, targets)
    if classes is None:
        return (each.mean(1) * weights).mean()
    own = classes[targets.long()].reshape(len(targets), -1)
    return (own * each * weights[:, None]).sum() / own.sum()


OFFSET_STEPS = 8
"""Passes of iterative scaling; more change a held-out loss by less than 0.1 %."""
PSEUDO_COUNT = 0.5
"""Samples per class, spread as the model expects them, that damp every step: an absent class is not ruled out."""


def output_offset(outputs: Tensor, targets: Tensor, units: Tensor | None = None) -> Tensor:
    """The constants that, added to the outputs of k models, best explain the targets: one for each of U units.

    It is all that a client needs of its own when its labels are only drawn in other proportions (label skew).
    outputs: (k, n, ..., C) logits with targets (n, ...) labels, by iterative scaling (Darroch and Ratcliff 1972); or
    outputs of the targets' size with real targets (n, ...), by the mean residual, shrunk by one sample. units: (n,)
    the unit of each sample, from 0 on; none: all are of one. The constants have as many dimensions as the outputs,
    (k, U, ..., C), so that those of the samples' units can be added.
    """
    if outputs.ndim == 2:  # one number per sample, (k, n)
        return output_offset(outputs[..., None], targets, units)[..., 0]
    unit = torch.zeros(len(targets), dtype=torch.long) if units is None else units
    count = int(unit.max()) + 1 if len(unit) else 1
    if targets.is_floating_point():
        residual = (targets - outputs.reshape(-1, *targets.shape)).reshape(len(outputs), len(targets), -1)
        sums = residual.new_zeros(len(outputs), count, residual.shape[-1]).index_add_(1, unit, residual)
        shrunk = sums / (torch.bincount(unit, minlength=count).to(sums.dtype)[:, None] + 1)
        return shrunk.reshape(len(outputs), count, *outputs.shape[2:])
    logits, labels = outputs.flatten(1, -2), targets.reshape(-1)
    of_label = unit.repeat_interleave(labels.numel() // max(len(unit), 1))
    if logits.shape[-1] == 1:  # the logit of the second class: two outputs of which the first is 0
        both = _scaled(torch.cat([torch.zeros_like(logits), logits], -1), labels, of_label, count)
        offset = both[..., 1:] - both[..., :1]
    else:
        offset = _scaled(logits, labels, of_label, count)
    return offset.reshape(len(outputs), count, *[1] * (outputs.ndim - 3), -1)


def _scaled(logits: Tensor, labels: Tensor, units: Tensor, count: int) -> Tensor:
    """Constants (k, count, C) for logits (k, n, C), with which every unit expects each class as often as it has it."""
    classes = logits.shape[-1]
    seen = torch.bincount(units * classes + labels, minlength=count * classes).reshape(count, classes).to(logits.dtype)

    def expected_with(offset: Tensor) -> Tensor:
        expected = torch.softmax(logits + offset[:, units], -1)
        return torch.zeros_like(offset).index_add_(1, units, expected)

    offset = logits.new_zeros(len(logits), count, classes)
    expected = expected_with(offset)
    prior = PSEUDO_COUNT * classes * expected / expected.sum(-1, keepdim=True)
    for _ in range(OFFSET_STEPS):
        offset = offset + torch.log((seen + prior) / (expected + prior))
        expected = expected_with(offset)
    return offset - offset.mean(-1, keepdim=True)


def class_logits(outputs: Tensor, loss: Loss | None = None) -> Tensor:
    """Logits `(n, ..., classes)` of outputs of that shape, or of one output per label: `(n,)` or `(n, ..., 1)`.

    One output is the logit of label 1 and that of label 0 is zero, except under softmax cross-entropy, where it is that
    of the only class.
    """
    outputs = outputs[:, None] if outputs.ndim == 1 else outputs
    if outputs.shape[-1] > 1 or loss is softmax_loss:
        return outputs
    return torch.cat([torch.zeros_like(outputs), outputs], -1)


def predicted_labels(outputs: Tensor, loss: Loss | None = None) -> Tensor:
    """The label `(n, ...)` that outputs `(n, ..., classes)`, `(n, ..., 1)` or `(n,)` stand for."""
    return class_logits(outputs, loss).argmax(-1)


def hits(outputs: Tensor, targets: Tensor, loss: Loss | None = None) -> Tensor:
    """The share of each sample's labels that is predicted rightly `(n,)`; NaN for real targets."""
    if targets.is_floating_point():
        return torch.full((len(targets),), float("nan"), dtype=outputs.dtype, device=outputs.device)
    # Rows of labels, because labels (n, 1) against predictions (n,) would be compared all with all.
    right = predicted_labels(outputs, loss).reshape(len(targets), -1) == targets.reshape(len(targets), -1)
    return right.to(outputs.dtype).mean(1)


def correct(outputs: Tensor, targets: Tensor, loss: Loss | None = None) -> Tensor:
    """How many labels are predicted rightly, as a fraction; NaN for real targets, which have no accuracy."""
    return hits(outputs, targets, loss).mean()
