"""What an app reports beside its arrays: which metrics are looked for, and what makes them usable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import MetricRecord, RecordDict

from coterie.tasks.wire import BadReply

TRAIN_LOSS = ("train_loss", "train-loss", "loss")
EVALUATE_LOSS = ("eval_loss", "eval-loss", "val_loss", "test_loss", "loss")
NO_LOSS = f"its metrics hold no finite loss (of {', '.join(EVALUATE_LOSS)}): name it with evaluate_loss_key="
ACCURACY = ("eval_acc", "eval-acc", "accuracy", "acc")
MOST_ACCURACY = 100
MOST_SAMPLES = 2**40
"""More is no number of anybody's samples."""


@dataclass(frozen=True)
class Keys:
    """What the records of the app are called, as in Flower's FedAvg, and its losses; None looks for a usual name."""

    weight: str = "num-examples"
    arrays: str = "arrays"
    config: str = "config"
    train_loss: str | None = None
    evaluate_loss: str | None = None


def metrics_of(content: RecordDict, keys: Keys) -> MetricRecord:
    """The reply's only MetricRecord, with a weight that can be used; BadReply otherwise."""
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise BadReply(f"it sent {len(records)} MetricRecords, expected one")
    weight = records[0].get(keys.weight)
    if isinstance(weight, list) or weight is None or not math.isfinite(weight) or weight <= 0:
        raise BadReply(f"its metric {keys.weight!r} is {str(weight)[:40]}, expected a number above 0")
    if weight > MOST_SAMPLES:
        raise BadReply(f"its metric {keys.weight!r} is {weight:.3g}, expected at most {MOST_SAMPLES}")
    for name in ACCURACY:
        value = records[0].get(name)
        if isinstance(value, int | float) and not 0 <= value <= MOST_ACCURACY:
            raise BadReply(f"its metric {name!r} is {value:.3g}, expected 0 to 1, or to 100 where it is a percentage")
    return records[0]


def number(metrics: MetricRecord, key: str | None, usual: Sequence[str]) -> float | None:
    """The finite number under the key, or under the first of the usual names that has one."""
    for name in (key,) if key is not None else usual:
        value = metrics.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    return None


def weighted_metrics(records: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """The weighted mean of every finite metric over the records that have it."""
    totals: dict[str, tuple[float, float]] = {}
    for record in records:
        for metrics in record.metric_records.values():
            weight = float(metrics[weighted_by_key])  # type: ignore[arg-type]
            for name, value in metrics.items():
                if name != weighted_by_key and isinstance(value, int | float) and math.isfinite(value):
                    total, weights = totals.get(name, (0.0, 0.0))
                    totals[name] = (total + weight * value, weights + weight)
    return MetricRecord({name: total / weights for name, (total, weights) in totals.items()})


def usual_names(metrics: MetricRecord, keys: Keys) -> dict[str, float]:
    """The app's finite metrics under its own names, and its loss and accuracy also under the usual ones."""
    found = {
        name: float(value)
        for name, value in metrics.items()
        if name != keys.weight and isinstance(value, int | float) and math.isfinite(value)
    }
    loss, accuracy = number(metrics, keys.evaluate_loss, EVALUATE_LOSS), number(metrics, None, ACCURACY)
    return found | ({} if loss is None else {"loss": loss}) | ({} if accuracy is None else {"accuracy": accuracy})
