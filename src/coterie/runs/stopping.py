"""When a run ends before its last round: no progress on validation data, or a limit of time or bytes is reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.errors import RunError
from coterie.methods import Event
from coterie.metrics import higher_is_better
from coterie.runs.records import RoundRecord, Spread
from coterie.runs.store import Checkpoint, KeptRound

STOPPED, RESTORED = "stopped", "restored"
"""The kinds of the events with which a run ends early, and with the models of an earlier round."""


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
        sent, best = done.bytes_down + done.bytes_up, done.best
        if self.patience is not None and best is not None and rounds[-1].validation:
            waited = done.round - best.round
            if waited >= self.patience:
                text = f"the validation {self.monitor} was best in round {best.round} ({best.value:.4g}), and not since"
                return Event(STOPPED, text, {"patience": self.patience, "best_round": best.round})
        if self.max_seconds is not None and done.seconds >= self.max_seconds:
            return Event(
                STOPPED, f"{done.seconds:.1f} s, of max_seconds={self.max_seconds:g}", {"seconds": done.seconds}
            )
        if self.max_bytes is not None and sent >= self.max_bytes:
            return Event(STOPPED, f"{sent:,} bytes sent, of max_bytes={self.max_bytes:,}", {"bytes": sent})
        if self.max_passes is not None and done.passes >= self.max_passes:
            text = f"{done.passes:.1f} passes over clients' data, of max_passes={self.max_passes:g}"
            return Event(STOPPED, text, {"passes": done.passes})
        return None


NO_LIMITS = Limits()
