"""What puts a result in doubt: a loss that explodes, noticed when it does, and clusters that ended unsure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from coterie.methods import Event
from coterie.runs.records import RoundRecord

KIND = "exploding loss"
IN_THE_END = ("undecided", "unused", "unsettled")
"""Kinds of events of the last round that put the clusters in doubt: CFL could not tell, IFCA's models died or share."""
EXPLODED = 100.0
"""A loss that is so many times what a model without any training would have is no longer learning."""


class ExplosionWatch:
    """Notices that the mean test loss explodes, the first time it does, from each round's loss alone.

    It is measured by the loss of a guess, log(classes), or in a regression by the loss of the first round. `rounds` are
    those done before, in a run that is resumed.
    """

    def __init__(self, classes: int, rounds: Sequence[RoundRecord]) -> None:
        self.reported = any(event.kind == KIND for record in rounds for event in record.events)
        known = [record.loss.mean for record in rounds if record.loss.mean is not None]
        self.usual = math.log(max(classes, 2)) if classes else known[0] if known else math.inf

    def event(self, loss: float | None) -> Event | None:
        """The event that says that the loss of this round explodes, or None."""
        if loss is None or self.reported:
            return None
        usual = self.usual
        self.usual = loss if usual == math.inf and math.isfinite(loss) else usual
        if loss <= EXPLODED * usual < math.inf or (usual == math.inf and math.isfinite(loss)):
            return None
        self.reported = True
        text = f"the mean test loss is {loss:.3g}, of an untrained model it is about {usual:.3g}"
        if usual == math.inf:
            text = f"the mean test loss is {loss:.3g}"
        return Event(KIND, f"{text}: training diverges, lower the learning rate", {"loss": loss, "usual": usual})


def warnings_of(rounds: Sequence[RoundRecord]) -> list[str]:
    """What the summary repeats of the rounds' events: those that put the result in doubt."""
    doubts = [
        f"round {record.round}: {event.text}" for record in rounds for event in record.events if event.kind == KIND
    ]
    last = rounds[-1].events if rounds else []
    return doubts + [event.text for event in last if event.kind in IN_THE_END]
