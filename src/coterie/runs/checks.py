"""What is refused before anything is trained: data, models, losses, methods and noise that do not go together."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from coterie.engines.base import Engine
from coterie.errors import ConfigError, ModelError, users_code
from coterie.federation import Federation
from coterie.methods import Method
from coterie.methods.needs import check_network, check_protection, needs_of
from coterie.privacy.masks import MASKED
from coterie.runs.config import RunConfig
from coterie.trainers.augment import own_function
from coterie.trainers.base import Training
from coterie.trainers.losses import FOR_LABELS, LOSSES, Loss, binary_loss, softmax_loss


def check_federation(given: object) -> None:
    """Refuse what was given for a federation and is none."""
    if given is not None and not isinstance(given, Federation):
        raise ConfigError(
            f"federation is a {type(given).__name__}: expected a coterie.Federation, as from "
            "Federation.from_tensors({client: (x, y)})"
        )


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


def check_training(training: Training, loss: Loss | None, federation: Federation) -> None:
    """Refuse a loss, class weights or an augmentation that such data cannot have."""
    named = {function: name for name, function in LOSSES.items()}
    if loss in named and loss is not binary_loss and federation.regression == (loss in FOR_LABELS):
        has, other = ("real numbers", "mse, mae, huber") if federation.regression else ("labels", "cross-entropy, bce")
        raise ConfigError(f"loss={named[loss]!r}: the targets are {has}, use one of {other}")
    if training.class_weights is not None:
        _check_class_weights(training.class_weights, loss, federation)
    if isinstance(training.augment, str) and not own_function(training.augment):
        _check_images(training.augment, federation)


def _check_images(augment: str, federation: Federation) -> None:
    """Refuse changes to images where the inputs are none."""
    if len(federation.input_shape) < 2 or not federation.clients[0].train.x.is_floating_point():
        raise ConfigError(
            f"augment={augment!r} goes with images (…, height, width), not with inputs of shape "
            f"{tuple(federation.input_shape)}"
        )


def _check_class_weights(weights: str | tuple[float, ...], loss: Loss | None, federation: Federation) -> None:
    """Refuse class weights without classes, or of another number than there are classes."""
    if federation.regression or loss not in (None, *FOR_LABELS):
        raise ConfigError("class_weights goes with labels and with loss='cross-entropy' or 'bce'")
    if not isinstance(weights, str) and len(weights) != federation.classes:
        raise ConfigError(
            f"class_weights has {len(weights)} numbers, the data has {federation.classes} classes: give one for each"
        )


def check_shown(config: RunConfig, method: Method) -> None:
    """Refuse a run that would show what the method hides."""
    needs = needs_of(method)
    if config.personalise and needs is not None and needs.choices == "hidden":
        raise ConfigError(
            f"personalise={config.personalise} shows every client's accuracy, from which hide_choice=True keeps its "
            "choice: give one of the two"
        )


def check_needs(method: Method, engine: Engine) -> None:
    """Refuse a method that needs of clients what this engine keeps from it, or would send in clear."""
    known = engine.capabilities
    check_protection(method, known.secure, masked=MASKED in engine.layout.names)
    if known.remote:
        check_network(method, known.secure)


def check_noise(config: RunConfig, method: Method, engine: Engine) -> None:
    """Refuse noise of differential privacy where its ε guarantee does not hold."""
    why = _no_guarantee(config, method, engine)
    if why is not None:
        raise ConfigError(f"dp_noise={config.dp_noise}: the ε guarantee does not hold: {why}")
    clients = len(engine.clients)
    if config.dp_delta * clients >= 1:
        raise ConfigError(
            f"dp_delta={config.dp_delta}: with {clients} clients it allows to publish all data of one: give well below "
            f"1/{clients}"
        )


def _no_guarantee(config: RunConfig, method: Method, engine: Engine) -> str | None:
    """Why the ε guarantee does not hold, or None."""
    needs, name = needs_of(method), getattr(method, "name", type(method).__name__)
    if needs is None:
        return f"{name} does not declare what it needs of clients; give its class needs = Needs() if sums are enough"
    if (why := needs.beyond_noise()) is not None:
        return f"{name}: {why}"
    if engine.capabilities.secure and needs.choices == "seen":
        return "secure sums by model show who chose which, and those of few stay closed; use hide_choice=true"
    if engine.layout.size != engine.layout.trainable:
        return "the model has buffers (running means), which no length bounds; use one without batch normalisation"
    if getattr(method, "weighting", "uniform") == "samples":
        return "numbers of samples as weights change how much one client counts; use weighting=uniform"
    if config.keep_optimizer:
        return "clients' optimisers keep gradients without noise, and a checkpoint keeps them; leave keep_optimizer off"
    if config.patience is not None:
        return "patience chooses the models by exact metrics; give rounds alone"
    return None
