"""Runs cases: each from a seed of its own, with an alarm, and a line that says how to repeat what was found."""

from __future__ import annotations

import contextlib
import io
import random
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from coterie.cli import main
from coterie.errors import CoterieError

SECONDS = 20.0
"""A case that takes longer hangs; one takes some hundredths of a second on a quiet machine."""
Trial = Callable[[random.Random], str]
"""Makes one case and tries it; says what became of it in a word, such as "accepted"."""


class Target(Protocol):
    """A kind of input."""

    name: str

    def open(self, folder: Path) -> contextlib.AbstractContextManager[Trial]:
        """What all cases need, made once, in an empty folder."""
        ...


class Finding(Exception):
    """A case that was neither refused in one line nor gives what it should."""


class Hang(BaseException):
    """Not an Exception, so that nobody catches it but the harness."""


@dataclass
class Outcome:
    """What became of the cases of a target, counted, and what was found, with the way to repeat it."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def fuzz(target: Target, numbers: Sequence[int], seed: int, folder: Path) -> Outcome:
    """Try the cases with these numbers."""
    outcome = Outcome(target.name)
    began = time.monotonic()
    with target.open(folder) as trial:
        for number in numbers:
            try:
                word = _tried(trial, random.Random(f"{seed}/{target.name}/{number}"))
            except Finding as found:
                word = f"FOUND {found}"
            except Hang:
                word = "FOUND a hang: " + _where(traceback.format_exc())
            except Exception as problem:
                word = f"FOUND {type(problem).__name__}: {problem} " + _where(traceback.format_exc())
            if word.startswith("FOUND"):
                again = f"PYTHONPATH=tests python -m fuzz --target {target.name} --seed {seed} --case {number}"
                outcome.findings.append(f"{' '.join(word.split())[:600]}\n    {again}")
                word = "found"
            outcome.counts[word] += 1
    outcome.seconds = time.monotonic() - began
    return outcome


def _tried(trial: Trial, random: random.Random) -> str:
    def ring(signal: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return trial(random)
    except CoterieError as refusal:
        if not str(refusal).strip():
            raise Finding("a refusal without a word") from refusal
        return "refused"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _where(trace: str) -> str:
    return "in " + " < ".join(reversed([line.strip() for line in trace.splitlines() if "File " in line][-4:]))


def command(*words: str) -> str:
    """What becomes of a command: "accepted" or "refused"; Finding for any other exit, or more than one line."""
    said = io.StringIO()
    with _stderr(said):
        try:
            main(list(words))
            code: object = 0
        except SystemExit as stop:
            code = stop.code
    lines = [line for line in said.getvalue().splitlines() if line.startswith("coterie: ")]
    if code == 0:
        return "accepted"
    if code == 2 and lines and "Traceback" not in said.getvalue():
        return "refused"
    raise Finding(f"exit {code} from {' '.join(words)[:300]!r}: {said.getvalue()[-300:]}")


@contextlib.contextmanager
def _stderr(said: io.StringIO) -> Iterator[None]:
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        yield
