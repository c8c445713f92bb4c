"""What ends a run early (no progress, a limit), and what puts its result in doubt (a loss that explodes)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.errors import RunError
from coterie.methods import Event
from coterie.metrics import higher_is_better
from coterie.runs.records import RoundRecord, Spread
from coterie.runs.store import Checkpoint, KeptRound

STOPPED, RESTORED = "stopped", "restored"
"""The kinds of the events with which a run ends early, and with the models of an earlier round."""
EXPLODING = "exploding loss"
IN_THE_END = ("undecided", "unused", "unsettled")
"""Kinds of events of the last round that put the clusters in doubt: CFL was undecided, IFCA's models died or share."""
EXPLODED = 100.0
"""A loss above this many times that of a model without any training: it is no longer learning."""


@dataclass(frozen=True)
class Limits:
    """What ends a run before its last round."""

    patience: int | None = None
    """Rounds without a better `monitor` on validation data; the best round's models are kept and restored."""
    monitor: str = "loss"
    max_seconds: float | None = None
    max_bytes: int | None = None
    """Bytes up and down together."""
    max_passes: float | None = None
    """Passes of a client over its training data (see `Traffic.passes`)."""

    def is_better(self, validation: dict[str, Spread], best: KeptRound | None) -> bool:
        """Whether a round's validation metrics beat the best so far; RunError where they say nothing."""
        found = validation.get(self.monitor, Spread())
        if found.clients is None:
            raise RunError(
                f"patience={self.patience}: no client has a {self.monitor} on validation data: hold some of the "
                "training data out with validation=0.2, or monitor another metric"
            )
        if best is None or best.value is None or found.mean is None:
            return found.mean is not None
        return found.mean > best.value if higher_is_better(self.monitor) else found.mean < best.value

    def reached(self, rounds: Sequence[RoundRecord], done: Checkpoint) -> Event | None:
        """The event that ends the run after the rounds done so far, or None."""
        sent, seconds, passes = done.bytes_down + done.bytes_up, done.seconds, done.passes
        if rounds[-1].validation and (stop := self._out_of_patience(done)) is not None:
            return stop
        if self.max_seconds is not None and seconds >= self.max_seconds:
            return Event(STOPPED, f"{seconds:.1f} s, of max_seconds={self.max_seconds:g}", {"seconds": seconds})
        if self.max_bytes is not None and sent >= self.max_bytes:
            return Event(STOPPED, f"{sent:,} bytes sent, of max_bytes={self.max_bytes:,}", {"bytes": sent})
        if self.max_passes is not None and passes >= self.max_passes:
            text = f"{passes:.1f} passes over clients' data, of max_passes={self.max_passes:g}"
            return Event(STOPPED, text, {"passes": passes})
        return None

    def _out_of_patience(self, done: Checkpoint) -> Event | None:
        best = done.best
        if self.patience is None or best is None or done.round - best.round < self.patience:
            return None
        text = f"the validation {self.monitor} was best in round {best.round} ({best.value:.4g}), and not since"
        return Event(STOPPED, text, {"patience": self.patience, "best_round": best.round})


NO_LIMITS = Limits()


class ExplosionWatch:
    """Notices that the mean test loss explodes, the first time it does, from each round's loss alone.

    It is measured by the loss of a guess, log(classes), or in a regression by the loss of the first round. `rounds` are
    those done before, in a run that is resumed.
    """

    def __init__(self, classes: int, rounds: Sequence[RoundRecord]) -> None:
        self.reported = any(event.kind == EXPLODING for record in rounds for event in record.events)
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
        return Event(EXPLODING, f"{text}: training diverges, lower the learning rate", {"loss": loss, "usual": usual})


def warnings_of(rounds: Sequence[RoundRecord]) -> list[str]:
    """What the summary repeats of the rounds' events: those that put the result in doubt."""
    doubts = [
        f"round {record.round}: {event.text}" for record in rounds for event in record.events if event.kind == EXPLODING
    ]
    last = rounds[-1].events if rounds else []
    return doubts + [event.text for event in last if event.kind in IN_THE_END]
