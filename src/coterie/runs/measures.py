"""What clients are judged by, accuracy or for real targets the loss: which way is better, and how it is written."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.runs.records import RoundRecord, Spread, Summary


@dataclass(frozen=True)
class Measure:
    """A metric as people read it."""

    name: str
    higher_is_better: bool
    factor: float
    """From the number in the records to the one that is written."""
    title: str
    """What an axis or a column says."""
    unit: str
    """Of a difference, with a space before it."""

    def text(self, value: float | None, form: str = "") -> str:
        """A value, such as "94.5 %" or "0.0312"."""
        if value is None:
            return "–"
        return f"{100 * value:{form or '.1f'}}\u00a0%" if self is ACCURACY else f"{value:{form or '.4g'}}"

    def change(self, value: float) -> str:
        """A signed difference, such as "+1.2 points" or "−0.031"."""
        text = f"{100 * value:+.1f}" if self is ACCURACY else f"{value:+.3g}"
        return f"{text}{self.unit}".replace("-", "−")

    def gain(self, own: float, other: float) -> float:
        """How much better `own` is than `other`."""
        return own - other if self.higher_is_better else other - own

    def of(self, record: RoundRecord | Summary) -> Spread:
        """The measure's spread over the clients."""
        return record.metrics.get(self.name, Spread())


ACCURACY = Measure("accuracy", True, 100.0, "accuracy, %", " points")
LOSS = Measure("loss", False, 1.0, "loss", "")


def judged_by(summary: Summary) -> Measure:
    """Accuracy where a run has one, else the loss."""
    return ACCURACY if summary.accuracy.mean is not None else LOSS
