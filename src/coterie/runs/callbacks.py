"""Those who follow a run, a line of progress among them.

They can end it; what goes wrong in one of them costs neither the run nor its result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from coterie.errors import CallbackError, StopRun
from coterie.methods import Event
from coterie.runs.records import RoundRecord, Spread
from coterie.runs.stopping import STOPPED
from coterie.runs.words import count, ending, means_in_words, privacy_in_words, round_in_words

if TYPE_CHECKING:
    from coterie.runs.prepared import Run
    from coterie.runs.result import Result


REWRITE_SECONDS = 0.1
"""The least time between two versions of the line."""
PLAIN_LINES = 10
"""About how many lines are printed where they cannot be rewritten."""


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


def followed(callbacks: Sequence[Callback], progress: bool | None) -> list[Callback]:
    """The callbacks, with one that prints a line where that is wanted; None: on a terminal and in a notebook."""
    stream = sys.stdout if in_notebook() else sys.stderr
    rewritten = in_notebook() or stream.isatty()
    wanted = rewritten if progress is None else progress
    return [ProgressLine(stream, rewritten), *callbacks] if wanted else list(callbacks)


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class ProgressLine(Callback):
    """One line that follows a run, rewritten where the stream can do that; at the end it says what was reached."""

    def __init__(self, stream: TextIO, rewritten: bool) -> None:
        self.stream, self.rewritten = stream, rewritten
        self.title, self.rounds, self.metrics = "", 0, tuple[str, ...]()
        self.known: dict[str, Spread] = {}
        self.width, self.shown, self.last = 0, 0.0, ""

    def on_start(self, run: Run, done: int) -> None:
        self.title = f"{run.labels['method']} on {run.labels['scenario']}"
        self.rounds, self.metrics = run.server.rounds, run.metrics
        for text in trainer_lines(run):
            print(text, file=self.stream)
        for text in run.foreseen():
            print(f"warning: {text}", file=self.stream)

    def on_round(self, record: RoundRecord) -> None:
        self.known = record.metrics or self.known
        reached = round_in_words(record, self.known, self.metrics)
        self.last = f"{self.title}: round {record.round}/{self.rounds}  {reached}"
        if not self.rewritten:
            if record.round % max(1, self.rounds // PLAIN_LINES) == 0:
                print(self.last, file=self.stream, flush=True)
        elif time.monotonic() - self.shown >= REWRITE_SECONDS:
            self._show(self.last)

    def on_end(self, result: Result) -> None:
        summary = result.summary
        words = [means_in_words(summary.metrics, self.metrics), count(len(summary.clusters), "cluster")]
        words += privacy_in_words(summary)
        self._show(f"{self.title}: {count(summary.rounds, 'round')}  {'  '.join(words)}  {summary.seconds:.1f} s")
        for text in ending(summary):
            print(f"\n{text}", end="", file=self.stream)
        print(file=self.stream, flush=True)

    def _show(self, text: str) -> None:
        start, self.shown = ("\r" if self.rewritten else ""), time.monotonic()
        print(f"{start}{text:<{self.width}}", end="", file=self.stream, flush=True)
        self.width = len(text)


def trainer_lines(run: Run) -> list[str]:
    """How the clients train and why so, in one line; none where the clients choose, as on a network."""
    description = getattr(getattr(run.engine, "trainer", None), "description", "")
    return [f"training: {description}"] if description else []
