"""What clients are judged by, accuracy or for real targets the loss: which way is better, and how it is written."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coterie.runs.records import RoundRecord, Spread, Summary


@dataclass(frozen=True)
class Measure:
    """A metric as people read it: accuracies in per cent and compared in points, losses compared by their ratio.

    A loss has the unit of its targets and is many times higher for some clients, so that a mean of differences would be
    those clients'.
    """

    name: str
    higher_is_better: bool

    @property
    def title(self) -> str:
        """What an axis says."""
        return "accuracy, %" if self.higher_is_better else "loss"

    @property
    def unit(self) -> str:
        """Of a difference."""
        return "points" if self.higher_is_better else "%"

    def shown(self, value: float) -> float:
        """A value as an axis has it."""
        return 100 * value if self.higher_is_better else value

    def text(self, value: float | None) -> str:
        """A value, such as "94.5 %" or "0.0312"."""
        if value is None:
            return "–"
        return f"{100 * value:.1f}\u00a0%" if self.higher_is_better else f"{value:.4g}"

    def possible(self, low: float, high: float) -> tuple[float, float]:
        """The ends of an interval cut to what a value can be."""
        return max(low, 0.0), min(high, 1.0) if self.higher_is_better else high

    def paired(self, value: float | None) -> float | None:
        """What differences are taken of: the value, or the logarithm of a loss; None where that does not exist."""
        if value is None or self.higher_is_better:
            return value
        return math.log(value) if value > 0 else None

    def difference(self, own: float, other: float) -> float | None:
        """`own` minus `other`, or for a loss the logarithm of their ratio; None where that does not exist."""
        ours, theirs = self.paired(own), self.paired(other)
        return None if ours is None or theirs is None else ours - theirs

    def gain(self, difference: float) -> float:
        """A difference that is positive where it is an improvement."""
        return difference if self.higher_is_better else -difference

    def amount(self, difference: float) -> float:
        """A difference in its unit: points, or per cent of the other loss."""
        return 100 * (difference if self.higher_is_better else math.expm1(difference))

    def change(self, difference: float, *, unit: bool = True) -> str:
        """A signed difference, such as "+1.2 points" or "−31 %"."""
        amount = self.amount(difference)
        form = "+.1f" if self.higher_is_better else "+,.0f" if abs(amount) >= 100 else "+.3g"
        text = f"{amount:{form}}".replace("-", "−")
        return f"{text}\u00a0{self.unit}" if unit else text

    def of(self, record: RoundRecord | Summary) -> Spread:
        """The measure's spread over the clients."""
        return record.metrics.get(self.name, Spread())


ACCURACY = Measure("accuracy", True)
LOSS = Measure("loss", False)


def judged_by(summary: Summary) -> Measure:
    """Accuracy where a run has one, else the loss."""
    return ACCURACY if summary.accuracy.mean is not None else LOSS
