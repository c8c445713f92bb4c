"""How every method is tuned alike: its step size until the best is inside of those tried, and then its own option."""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HALF_DECADE = 10**0.5
"""Each step size is so many times the one before."""
WIDEST = 8
"""Step sizes are tried over so many half decades to either side of the federation's, at the most."""
DIGITS = 5
"""Digits that are kept of a metric."""
Found = Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """What a method may be run with."""

    options: str
    """Options of the method as text, "" for its defaults."""
    step: int = 0
    """Half decades from the federation's step size."""

    def rate(self, usual: float) -> float:
        """The step size, where the federation's is the usual one."""
        return float(f"{usual * HALF_DECADE**self.step:.4g}")


Search = Generator[list[Trial], Sequence[Found], Trial | None]
"""Yields trials that may be run at the same time, is sent what came of them, and returns the best of all."""


def search(variants: Sequence[str], *, higher: bool) -> Search:
    """The step size for the first variant, every other variant with that step, and the step size for the best one.

    A variant's step sizes are tried at its start and beside it, and then further on that side where the best one is the
    last, until it is inside. A search ends with nothing where every trial failed.
    """
    tried: dict[Trial, Found] = {}

    def best(options: str | None = None) -> Trial | None:
        some = [trial for trial in tried if options in (None, trial.options)]
        chosen = choose([tried[trial] for trial in some], higher=higher)
        return None if chosen is None else some[chosen]

    def ask(trials: Sequence[Trial]) -> Generator[list[Trial], Sequence[Found], None]:
        new = [trial for trial in trials if trial not in tried and abs(trial.step) <= WIDEST]
        if new:
            tried.update(zip(new, (yield new), strict=True))

    def steps(options: str, start: int) -> Generator[list[Trial], Sequence[Found], None]:
        yield from ask([Trial(options, start + way) for way in (0, -1, 1)])
        while (found := best(options)) is not None and abs(found.step) < WIDEST:
            known = [trial.step for trial in tried if trial.options == options]
            if min(known) < found.step < max(known):
                return
            yield from ask([Trial(options, found.step + (1 if found.step == max(known) else -1))])

    yield from steps(variants[0], 0)
    first = best()
    start = 0 if first is None else first.step
    yield from ask([Trial(options, start) for options in variants[1:]])
    found = best()
    if found is not None:
        yield from steps(found.options, found.step)
    return best()


def choose(trials: Sequence[Found], *, higher: bool) -> int | None:
    """The trial with the best metric on validation data; of equal ones that with the lowest loss, then the first."""
    known = [number for number, trial in enumerate(trials) if "failed" not in trial]
    sign = -1 if higher else 1
    return min(known, key=lambda number: (sign * trials[number]["value"], trials[number]["loss"]), default=None)


def over_seeds(found: Sequence[Found]) -> dict[str, Any]:
    """A trial as the mean over its seeds; it failed where one of them did."""
    cpu = {"cpu": round(sum(one["cpu"] for one in found), 2)}
    for one in found:
        if "failed" in one:
            return {"failed": one["failed"], **cpu}
    losses = [one["loss"] for one in found if one["loss"] is not None]
    means = {"value": statistics.fmean(one["value"] for one in found), "loss": statistics.fmean(losses or [math.inf])}
    return {key: round(value, DIGITS) for key, value in means.items()} | cpu
