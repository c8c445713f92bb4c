"""What a model's outputs are worth on a client's labels: accuracy, AUC, F1, calibration, errors of a regression.

Every metric is a function of outputs and labels, computed in float64 where the data lies; a client sends the number
only. Outputs are logits `(n, classes)`, one logit per sample `(n, 1)` for two classes, or predictions of the labels'
shape where labels are real numbers. NaN stands where a metric is not defined, such as the AUC of samples of one class:
means over clients leave it out, and `Spread.clients` says how many clients they are over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.errors import ConfigError, ModelError, did_you_mean, users_code

MetricFunction = Callable[[Tensor, Tensor], Any]
"""`(outputs, labels) -> number`: a function of one's own, or a torchmetrics object."""
Metrics = str | Sequence[str | MetricFunction] | Mapping[str, MetricFunction]
"""Metrics as they are asked for: "auc,f1", a list of names and functions, or functions by name."""
Numbers = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

CALIBRATION_BINS = 15
"""Bins of equal width that the calibration error compares confidence and accuracy in."""
ALWAYS = ("loss", "accuracy")
"""What every evaluation reports, asked for or not."""


@dataclass(frozen=True)
class Metric:
    """A known metric."""

    name: str
    function: Callable[[Any, Any], float]
    """Of float64 arrays as `flattened` gives them."""
    target: Literal["classes", "numbers"]
    """What the labels are."""
    higher_is_better: bool
    limits: tuple[float, float]
    """The least and the most that it can be."""


METRICS: dict[str, Metric] = {}
"""All known metrics by name."""


def _metric(
    name: str,
    target: Literal["classes", "numbers"],
    *,
    higher_is_better: bool,
    limits: tuple[float, float] = (0.0, 1.0),
) -> Callable[[Callable[[Any, Any], float]], Callable[[Any, Any], float]]:
    """Add a function to the known metrics."""

    def add(function: Callable[[Any, Any], float]) -> Callable[[Any, Any], float]:
        METRICS[name] = Metric(name, function, target, higher_is_better, limits)
        return function

    return add


def compute(metrics: Metrics, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """The metrics of a model's outputs.

    Args:
        metrics: names, as in `["auc", "f1"]`, or functions by name, as in `{"mine": function}`.
        outputs: logits `(n, ..., classes)` or `(n, ..., 1)`; where labels are real numbers, predictions of their size.
        labels: classes `(n, ...)` as whole numbers, or real numbers `(n, ...)`.

    Returns:
        A number for each name; NaN where a metric is not defined for these samples, or there are none.

    Raises:
        ConfigError: a name is unknown, or goes with the other kind of labels.
        ModelError: a function of your own failed or returned no number.

    Example:
        >>> import torch
        >>> from coterie import metrics
        >>> metrics.compute(["auc"], torch.tensor([[2.0, 0.0], [1.0, 1.5], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
        {'auc': 1.0}
    """
    return measure(resolve(metrics), outputs, labels)


def measure(asked: Mapping[str, MetricFunction | None], outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """`compute` for metrics that are resolved already."""
    if not len(labels):
        return dict.fromkeys(asked, float("nan"))
    outputs, labels = flattened(outputs.detach(), labels)
    found = {}
    for name, own in asked.items():
        if own is not None:
            found[name] = _call(name, own, outputs, labels)
        else:
            check_target(name, labels.is_floating_point())
            found[name] = METRICS[name].function(*_as_numpy(outputs, labels))
    return found


def resolve(metrics: Metrics | None) -> dict[str, MetricFunction | None]:
    """The metrics that were asked for by name, each with its function if it is one's own.

    ConfigError for a name that is unknown, or that is given to a function and has a meaning already.
    """
    found = _asked_for(metrics)
    for name, own in found.items():
        if own is None and name not in METRICS:
            raise ConfigError(f"unknown metric {name!r}: {did_you_mean(name, METRICS)}")
    return found


def split_own(metrics: Metrics | None) -> tuple[str | None, dict[str, MetricFunction]]:
    """The names among the metrics that were asked for, as one text, and the functions of one's own by name."""
    if isinstance(metrics, str):
        return metrics, {}
    found = _asked_for(metrics)
    functions = {name: own for name, own in found.items() if own is not None}
    return ",".join(name for name in found if name not in functions) or None, functions


def _asked_for(metrics: Metrics | None) -> dict[str, MetricFunction | None]:
    """Functions by their names, and None for what is asked for by its name alone."""
    if metrics is None:
        return {}
    if isinstance(metrics, str):
        return dict.fromkeys(listed(metrics))
    if isinstance(metrics, Mapping):
        return {name: _own(name, function) for name, function in metrics.items()}
    if not isinstance(metrics, Iterable):
        raise ConfigError(f"metrics={metrics!r}: expected names as in 'auc,f1', a list of them, or functions by name")
    return dict((item, None) if isinstance(item, str) else _named(item) for item in metrics)


def _named(function: MetricFunction) -> tuple[str, MetricFunction]:
    name = getattr(function, "__name__", type(function).__name__)
    return name, _own(name, function)


ALIASES = {"acc": "accuracy", "f1-score": "f1"}
"""What people type for a metric."""


def listed(text: str | None) -> list[str]:
    """The names in a text such as "auc, f1", each once."""
    return list(
        dict.fromkeys(ALIASES.get(name.strip(), name.strip()) for name in (text or "").split(",") if name.strip())
    )


def check_name(name: str) -> None:
    """ConfigError for a metric that is neither known nor `module:function`."""
    if name not in METRICS and name not in ALWAYS and ":" not in name:
        raise ConfigError(f"unknown metric {name!r}: {did_you_mean(name, METRICS)}")


def _own(name: Any, function: Any) -> MetricFunction:
    if not isinstance(name, str) or not name.strip() or "," in name or not callable(function):
        raise ConfigError(f"metrics={{{name!r}: {function!r}}}: expected a name without commas and a function")
    if name in METRICS or name in ALWAYS:
        raise ConfigError(f"metrics={{{name!r}: …}}: there is a metric of that name already: choose another")
    checked: MetricFunction = function
    return checked


def check_target(name: str, real: bool) -> None:
    """ConfigError where a known metric does not go with labels that are real numbers, or with classes."""
    known = METRICS.get(name)
    if known is not None and (known.target == "numbers") != real:
        kind, others = ("numbers", "real numbers") if real else ("classes", "classes")
        suited = ", ".join(m.name for m in METRICS.values() if m.target == kind)
        raise ConfigError(f"metric {name!r} does not go with labels that are {others}: use one of {suited}")


def higher_is_better(name: str) -> bool:
    """Whether more of a metric is better; of one's own metrics it is taken to be."""
    return name != "loss" and (name not in METRICS or METRICS[name].higher_is_better)


def flattened(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and labels with one row per label: logits `(n, classes)`, or predictions as the labels `(n[, targets])`.

    A model that gives one number per label for whole-numbered labels gives one logit per sample, `(n, 1)`.
    """
    if labels.is_floating_point():
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        return outputs.reshape(labels.shape), labels
    if outputs.numel() == labels.numel():
        return outputs.reshape(-1, 1), labels.reshape(-1)
    return outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1)


def _as_numpy(outputs: Tensor, labels: Tensor) -> tuple[Numbers, Any]:
    y = labels.to(torch.float64) if labels.is_floating_point() else labels
    return outputs.to("cpu", torch.float64).numpy(), y.cpu().numpy()


def _call(name: str, function: MetricFunction, outputs: Tensor, labels: Tensor) -> float:
    with users_code(f"metric {name!r}"):
        value = function(outputs, labels)
        if callable(reset := getattr(function, "reset", None)):
            reset()  # torchmetrics add up over calls, and the next call is another client's
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ModelError(f"metric {name!r} returned {type(value).__name__}: expected one number") from None


def _log_probabilities(logits: Numbers) -> Numbers:
    """`(n, classes)` from logits `(n, classes)`, or `(n, 2)` from one logit per sample."""
    if logits.shape[1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
    with np.errstate(all="ignore"):  # logits of a run that diverged are not finite
        shifted = logits - logits.max(1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def _predicted(logits: Numbers) -> Labels:
    return np.asarray((logits[:, 0] > 0).astype(np.int64) if logits.shape[1] == 1 else logits.argmax(1))


@_metric("accuracy", "classes", higher_is_better=True)
def accuracy(logits: Numbers, labels: Labels) -> float:
    """Share of the labels that is right."""
    return float((_predicted(logits) == labels).mean())


@_metric("balanced-accuracy", "classes", higher_is_better=True)
def balanced_accuracy(logits: Numbers, labels: Labels) -> float:
    """Mean over the classes that occur of the share of their samples that is right."""
    counts = np.bincount(labels)
    hits = np.bincount(labels, weights=_predicted(logits) == labels)
    return float((hits[counts > 0] / counts[counts > 0]).mean())


@_metric("auc", "classes", higher_is_better=True)
def auc(logits: Numbers, labels: Labels) -> float:
    """Area under the ROC curve; of several classes the mean of each against the rest.

    The mean is over classes that have samples, and of which not all samples are; NaN where there is none.
    """
    if logits.shape[1] == 1:
        return _two_class_auc(logits[:, 0], labels == 1)
    if logits.shape[1] == 2:
        return _two_class_auc(logits[:, 1] - logits[:, 0], labels == 1)
    scores = _log_probabilities(logits)
    found = [_two_class_auc(scores[:, c], labels == c) for c in np.unique(labels)]
    known = [value for value in found if value == value]
    return float(np.mean(known)) if known else float("nan")


def _two_class_auc(scores: Numbers, positive: npt.NDArray[np.bool_]) -> float:
    """The chance that a positive sample has the higher score of two (Mann and Whitney), a tie counting half."""
    n, m = int(positive.sum()), int((~positive).sum())
    if n == 0 or m == 0 or np.isnan(scores).any():
        return float("nan")
    others, own = np.sort(scores[~positive]), scores[positive]
    below = np.searchsorted(others, own, "left").sum() + np.searchsorted(others, own, "right").sum()
    return float(below / (2 * n * m))


@_metric("f1", "classes", higher_is_better=True)
def f1(logits: Numbers, labels: Labels) -> float:
    """F1 of class 1 where there are two classes, else the mean F1 of the classes (macro).

    NaN where class 1 of two neither occurs nor is predicted.
    """
    return float(_f1_by_class(logits, labels)[1]) if logits.shape[1] <= 2 else f1_macro(logits, labels)


@_metric("f1-macro", "classes", higher_is_better=True)
def f1_macro(logits: Numbers, labels: Labels) -> float:
    """Mean F1 of the classes that occur or are predicted, of two classes too."""
    return float(np.nanmean(_f1_by_class(logits, labels)))


def _f1_by_class(logits: Numbers, labels: Labels) -> Numbers:
    """F1 of every class `(classes,)`; NaN of those that neither occur nor are predicted."""
    predicted, classes = _predicted(logits), max(2, logits.shape[1])
    hits = np.bincount(labels[predicted == labels], minlength=classes)
    both = np.bincount(predicted, minlength=classes) + np.bincount(labels, minlength=classes)
    return np.asarray(np.divide(2.0 * hits, both, out=np.full(classes, np.nan), where=both > 0))


@_metric("log-loss", "classes", higher_is_better=False, limits=(0.0, math.inf))
def log_loss(logits: Numbers, labels: Labels) -> float:
    """Mean negative log-likelihood of the labels, whatever the loss that is trained."""
    return abs(float(_log_probabilities(logits)[np.arange(len(labels)), labels].mean()))  # never above 0


@_metric("perplexity", "classes", higher_is_better=False, limits=(0.0, math.inf))
def perplexity(logits: Numbers, labels: Labels) -> float:
    """exp(log-loss): how many equally likely labels the model is as unsure between."""
    with np.errstate(over="ignore"):
        return float(np.exp(log_loss(logits, labels)))


@_metric("calibration", "classes", higher_is_better=False)
def calibration(logits: Numbers, labels: Labels) -> float:
    """Expected calibration error: confidence against accuracy, in 15 bins of equal width.

    It is Σ over bins of the share of samples times |mean confidence − accuracy|, where confidence is the probability of
    the predicted class; a bin holds its upper end (Guo et al. 2017).
    """
    confidence = np.exp(_log_probabilities(logits).max(1))
    if np.isnan(confidence).any():
        return float("nan")
    right = (_predicted(logits) == labels).astype(np.float64)
    bins = np.searchsorted(np.linspace(0, 1, CALIBRATION_BINS + 1)[1:-1], confidence)
    return min(1.0, float(np.abs(np.bincount(bins, weights=confidence - right)).sum() / len(labels)))


@_metric("mae", "numbers", higher_is_better=False, limits=(0.0, math.inf))
def mae(predictions: Numbers, targets: Numbers) -> float:
    """Mean absolute error."""
    return float(np.abs(predictions - targets).mean())


@_metric("rmse", "numbers", higher_is_better=False, limits=(0.0, math.inf))
def rmse(predictions: Numbers, targets: Numbers) -> float:
    """Root of the mean squared error; of several targets per sample the mean of each one's."""
    return float(np.sqrt(np.square(predictions - targets).mean(0)).mean())


@_metric("r2", "numbers", higher_is_better=True, limits=(-math.inf, 1.0))
def r2(predictions: Numbers, targets: Numbers) -> float:
    """Share of the targets' variance that is explained (R²); of several targets per sample the mean of each one's.

    NaN where a target is the same for all samples.
    """
    total = np.square(targets - targets.mean(0)).sum(0)
    if not np.all(total > 0):
        return float("nan")
    return float(np.mean(1 - np.square(predictions - targets).sum(0) / total))
