"""Does a model's output fit the targets? Asked once, on a few samples, before anything is trained."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, ModelError, users_code
from coterie.federation import Federation
from coterie.trainers.losses import LOSSES, Loss, binary_loss, softmax_loss


def try_out(module: nn.Module, federation: Federation, loss: Loss | None) -> None:
    """Run a few samples through module and loss; ConfigError or ModelError where they do not fit the data."""
    first = federation.clients[0].train
    rows = 3 if federation.classes == 2 else 2  # not the number of classes, which another dimension may have
    index = torch.arange(rows) % len(first)
    x, y = first.x[index], first.y[index]
    outputs = _outputs(module.eval(), x)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError("the model has no parameters to train: give it a layer with weights")
    if federation.regression:
        _check_numbers(outputs, y, loss)
    else:
        _check_logits(outputs, y, loss, federation.classes)
    if loss is not None and loss not in LOSSES.values():
        _check_loss(loss, outputs, y.to(outputs.dtype) if federation.regression else y)


def _outputs(module: nn.Module, x: Tensor) -> Tensor:
    """What the module gives for a few samples."""
    try:
        with torch.no_grad():
            outputs = module(x)
    except (Exception, SystemExit) as problem:
        shape = tuple(x.shape[1:])
        text = problem if isinstance(problem, RuntimeError | ValueError) else f"{type(problem).__name__}: {problem}"
        raise ConfigError(f"the model cannot take an input of shape {shape} {x.dtype}: {text}") from problem
    if not isinstance(outputs, Tensor):
        raise ConfigError(f"the model returns {type(outputs).__name__}: expected a tensor")
    if outputs.ndim == 0:
        raise ConfigError("the model returns one number for all its inputs: expected a row of outputs per sample")
    return outputs


def _check_numbers(outputs: Tensor, y: Tensor, loss: Loss | None) -> None:
    """Refuse outputs that are not predictions of the targets `(n, ...)`; a loss of one's own may take more of them."""
    ours = loss is None or loss in LOSSES.values()
    fits = outputs.numel() == y.numel() if ours else outputs.numel() >= y.numel()
    if not fits or len(outputs) != len(y):
        raise ConfigError(
            f"the model's output for {len(y)} samples has shape {tuple(outputs.shape)}, their targets "
            f"{tuple(y.shape)}: give the model one output per target"
        )


def _check_logits(outputs: Tensor, y: Tensor, loss: Loss | None, classes: int) -> None:
    """Refuse outputs that are neither logits of the labels `(n, ...)`, the classes last, nor one logit for two."""
    shape, labels = tuple(outputs.shape), tuple(y.shape) if y.numel() > len(y) else (len(y),)
    # A loss of the user's own may read two classes from one logit.
    if classes == 2 and loss not in (None, softmax_loss) and shape in {(len(y),), (*labels, 1)}:
        return
    count = shape[-1] if len(shape) > 1 else 1
    if loss is binary_loss:
        raise ConfigError(
            f"loss='bce': the model has {count} outputs and the data {classes} classes: "
            "use it with one output and labels 0 and 1, else loss='cross-entropy'"
        )
    if count < classes:
        raise ConfigError(
            f"the model has {count} outputs, the data has {classes} classes: give the model one output a class"
        )
    if shape[:-1] != labels:
        raise ConfigError(
            f"the model's output for {len(y)} samples has shape {shape}: expected {(*labels, classes)}, classes last"
        )


def _check_loss(loss: Loss, outputs: Tensor, y: Tensor) -> None:
    """Refuse a loss that fails on such outputs and targets, compares them all with all, or returns several numbers."""
    with users_code("the loss"), warnings.catch_warnings():
        warnings.filterwarnings("error", message="Using a target size")  # torch, of shapes that it broadcasts
        value = loss(outputs, y)
    if not isinstance(value, Tensor) or value.ndim:
        given = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ModelError(f"the loss returned {given}: expected one number, the mean over the samples, as a tensor")
