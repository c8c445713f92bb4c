"""The metrics are scikit-learn's to 1e-10 where both are defined, and NaN where they are not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as reference
import torch
from sklearn.calibration import calibration_curve
from torch import Tensor

from coterie import metrics
from coterie.errors import ConfigError, ModelError

CLASSIFICATION = [name for name, metric in metrics.METRICS.items() if metric.target == "classes"]
REGRESSION = [name for name, metric in metrics.METRICS.items() if metric.target == "numbers"]


def logits_and_labels(classes: int, n: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(max(classes, 2), (n,), generator=draw)
    labels[: max(classes, 2)] = torch.arange(max(classes, 2))  # every class occurs, as scikit-learn wants it
    logits = torch.randn(n, classes, generator=draw, dtype=torch.float64)
    if classes == 1:
        logits[:, 0] += labels - 0.5
    else:
        logits[torch.arange(n), labels] += 1
    logits[n // 2 :] = logits[: n - n // 2]  # ties, which an area under a curve must share
    return logits, labels


def scikit(name: str, logits: Tensor, labels: Tensor) -> float:
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], 1)
    y, p = labels.numpy(), torch.softmax(logits, 1).numpy()
    two = p.shape[1] == 2
    predicted = p.argmax(1)
    if name == "calibration":
        right, confidence = predicted == y, p.max(1)
        _, counts = np.unique(np.ceil(confidence * 15), return_counts=True)
        seen, said = calibration_curve(right, confidence, n_bins=15)
        return float((np.abs(seen - said) * counts).sum() / len(y))
    made: dict[str, Any] = {
        "accuracy": lambda: reference.accuracy_score(y, predicted),
        "balanced-accuracy": lambda: reference.balanced_accuracy_score(y, predicted),
        "auc": lambda: reference.roc_auc_score(y, p[:, 1] if two else p, multi_class="ovr", average="macro"),
        "f1": lambda: reference.f1_score(y, predicted, average="binary" if two else "macro"),
        "f1-macro": lambda: reference.f1_score(y, predicted, average="macro"),
        "log-loss": lambda: reference.log_loss(y, p),
        "perplexity": lambda: math.exp(reference.log_loss(y, p)),
    }
    return float(made[name]())


@pytest.mark.parametrize("classes", [1, 2, 3, 7])
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_classification_is_scikit_learns(name: str, classes: int) -> None:
    for seed in range(3):
        logits, labels = logits_and_labels(classes, seed=seed)
        ours = metrics.compute([name], logits, labels)[name]
        assert ours == pytest.approx(scikit(name, logits, labels), abs=1e-10)


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("name", REGRESSION)
def test_regression_is_scikit_learns(name: str, targets: int) -> None:
    draw = torch.Generator().manual_seed(1)
    y = torch.randn(50, targets, generator=draw, dtype=torch.float64)
    outputs = y + torch.randn(50, targets, generator=draw, dtype=torch.float64)
    made = {
        "mae": reference.mean_absolute_error,
        "rmse": reference.root_mean_squared_error,
        "r2": reference.r2_score,
    }[name]
    assert metrics.compute([name], outputs, y)[name] == pytest.approx(made(y.numpy(), outputs.numpy()), abs=1e-10)
    # Labels (n,) and outputs (n, 1), as a network gives them, are not compared all with all.
    one = metrics.compute([name], outputs[:, :1], y[:, 0])[name]
    assert one == pytest.approx(made(y[:, 0].numpy(), outputs[:, 0].numpy()), abs=1e-10)


def test_by_hand() -> None:
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 3.0]])
    labels = torch.tensor([1, 0, 0, 1])
    found = metrics.compute("accuracy,balanced-accuracy,auc,f1,f1-macro", logits, labels)
    # Scores 1, 1, -1, 3: of the four pairs one is tied. Class 1: 2 hits of 3 guesses; class 0: 1 hit of 2.
    assert found == pytest.approx(
        {"accuracy": 0.75, "balanced-accuracy": 0.75, "auc": 3.5 / 4, "f1": 4 / 5, "f1-macro": (4 / 5 + 2 / 3) / 2}
    )


def test_sequences_count_every_place() -> None:
    logits, labels = logits_and_labels(5, n=60)
    whole = metrics.compute(["perplexity", "auc"], logits, labels)
    assert metrics.compute(["perplexity", "auc"], logits.view(12, 5, 5), labels.view(12, 5)) == whole


@pytest.mark.parametrize(
    ("name", "outputs", "labels"),
    [
        ("auc", [[0.0, 1.0], [0.0, 2.0]], [1, 1]),
        ("auc", [[0.0, 1.0, 0.0], [0.0, 2.0, 0.0]], [2, 2]),
        ("auc", [[float("nan"), 1.0], [0.0, 2.0]], [0, 1]),
        ("f1", [[1.0, 0.0], [1.0, 0.0]], [0, 0]),
        ("r2", [1.0, 2.0], [3.0, 3.0]),
    ],
)
def test_undefined_is_nan(name: str, outputs: Any, labels: Any) -> None:
    assert math.isnan(metrics.compute([name], torch.tensor(outputs), torch.tensor(labels))[name])


@pytest.mark.parametrize("name", metrics.METRICS)
def test_no_samples_are_nan(name: str) -> None:
    real = name in REGRESSION
    outputs, labels = torch.zeros(0, 3), torch.zeros(0, 3) if real else torch.zeros(0, dtype=torch.int64)
    assert math.isnan(metrics.compute([name], outputs, labels)[name])


def test_own_functions_and_objects() -> None:
    class Running:
        """As torchmetrics: it adds up over calls until it is reset."""

        def __init__(self) -> None:
            self.seen = 0

        def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
            self.seen += len(labels)
            return torch.tensor(float(self.seen))

        def reset(self) -> None:
            self.seen = 0

    def margin(outputs: Tensor, labels: Tensor) -> float:
        return float((outputs[:, 1] - outputs[:, 0]).mean())

    logits, labels = logits_and_labels(2, n=10)
    running = Running()
    for _ in range(2):
        found = metrics.compute({"running": running}, logits, labels)
        assert found == {"running": 10.0}
    found = metrics.compute(["auc", margin], logits, labels)
    assert list(found) == ["auc", "margin"]
    assert found["margin"] == pytest.approx(float((logits[:, 1] - logits[:, 0]).mean()))


def test_wrong_metrics_are_refused() -> None:
    logits, labels = logits_and_labels(2, n=10)
    with pytest.raises(ConfigError, match="did you mean 'auc'"):
        metrics.compute("auk", logits, labels)
    with pytest.raises(ConfigError, match="choose another"):
        metrics.compute({"auc": lambda a, b: 0.0}, logits, labels)
    with pytest.raises(ConfigError, match="expected a name"):
        metrics.compute({"mine": 3}, logits, labels)  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="use one of mae"):
        metrics.compute("auc", logits[:, 0], labels.double())
    with pytest.raises(ModelError, match="'mine' raised ZeroDivisionError"):
        metrics.compute({"mine": lambda a, b: 1 / 0}, logits, labels)
    with pytest.raises(ModelError, match="'mine' returned Tensor: expected one number"):
        metrics.compute({"mine": lambda a, b: a}, logits, labels)


def test_values_stay_within_their_limits() -> None:
    for seed in range(20):
        logits, labels = logits_and_labels(3, n=12, seed=seed)
        for name, value in metrics.compute(CLASSIFICATION, 100 * logits, labels).items():
            low, high = metrics.METRICS[name].limits
            assert low <= value <= high, name
