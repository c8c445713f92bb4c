"""Those who follow a run. They can end it; what goes wrong in one of them costs neither the run nor its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coterie.errors import CallbackError, StopRun
from coterie.methods import Event
from coterie.runs.records import RoundRecord
from coterie.runs.stopping import STOPPED

if TYPE_CHECKING:
    from coterie.runs.prepared import Run
    from coterie.runs.result import Result


class Callback:
    """Someone who follows a run: a progress bar, a tracker. Subclasses override what they want to hear of.

    `on_event` and `on_round` may raise `coterie.StopRun("why")`: the run then ends after this round, with a result.

    Example:
        >>> import coterie
        >>> class GoodEnough(coterie.Callback):
        ...     def on_round(self, record: coterie.RoundRecord) -> None:
        ...         if (record.accuracy.mean or 0) > 0.5:
        ...             raise coterie.StopRun("accuracy above a half")
        >>> result = coterie.run("fedavg", scenario="digits-iid", clients=4, rounds=50, callbacks=[GoodEnough()])
        >>> result.summary.stopped
        'GoodEnough: accuracy above a half'
    """

    def on_start(self, run: Run, done: int) -> None:
        """The run begins, or resumes after `done` rounds."""

    def on_event(self, t: int, event: Event) -> None:
        """Something happened in round `t`."""

    def on_round(self, record: RoundRecord) -> None:
        """A round is done; `record` is its line of the history."""

    def on_end(self, result: Result) -> None:
        """The run is complete."""


class Followers:
    """All callbacks of a run. Each is called for everything, also where another one failed."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)

    def round(self, record: RoundRecord, events: Sequence[Event]) -> Event | None:
        """A round is done: its events, then its record. The event that ends the run, if a callback wants it to end."""
        stops = [self.call("on_event", record.round, event) for event in events]
        stops.append(self.call("on_round", record))
        return next((stop for stop in stops if stop is not None), None)

    def call(self, hook: str, *given: Any) -> Event | None:
        """Call a hook of every callback; CallbackError names the first that failed, after all were called."""
        stop: Event | None = None
        failed: CallbackError | None = None
        for callback in self.callbacks:
            name = type(callback).__name__
            try:
                getattr(callback, hook)(*given)
            except StopRun as reason:
                stop = stop or Event(STOPPED, f"{name}: {str(reason) or 'no reason given'}", {"callback": name})
            except (Exception, SystemExit) as problem:
                if failed is None:
                    said = f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
                    failed = CallbackError(f"callback {name}.{hook} raised {said}")
                    failed.__cause__ = problem
        if failed is not None:
            raise failed
        return stop
