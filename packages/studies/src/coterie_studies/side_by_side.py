"""The runs of a comparison, one after another or in processes side by side."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from typing import Any

from coterie.engines import begin_child, ignore_sigint, submitted
from coterie.federation import Federation
from coterie.runs import Model, RunFolder, make_config, resume, start
from coterie.trainers import Loss
from coterie_studies.ranking import ComparedRun


@dataclass(frozen=True)
class ComparisonJob:
    """One run of a comparison, and its configuration but for method and seed."""

    trial: ComparedRun
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Given:
    """What only Python can give to all runs of a comparison; processes inherit it, where they can be forked."""

    federation: Federation | None = None
    model: Model | None = None
    loss: Loss | None = None

    def __bool__(self) -> bool:
        return any(value is not None for value in (self.federation, self.model, self.loss))


NOTHING = Given()
SHORT = frozenset({"fedavg", "local"})
"""Methods whose rounds are training and nothing else: every other takes longer."""


Ended = tuple[ComparedRun, BaseException | None]
"""A run that has ended, and what it raised."""


def performed_here(jobs: Sequence[ComparisonJob], given: Given) -> Iterator[Ended]:
    """Do the runs one after another in this process."""
    for job in jobs:
        try:
            perform(job, given)
            yield job.trial, None
        except Exception as problem:
            yield job.trial, problem


def performed_in_pool(jobs: Sequence[ComparisonJob], count: int, given: Given, method: str) -> Iterator[Ended]:
    """Do the runs in processes of their own, `count` at once; each is given when it has ended.

    They begin in an order that leaves short ones for the end (`next_job`), so that no process waits long for another.
    """
    if not jobs:
        return
    waiting, seconds = list(jobs), dict[str, float]()
    pool = ProcessPoolExecutor(
        min(count, len(jobs)), mp_context=get_context(method), initializer=_begin, initargs=(given,)
    )
    others = set(active_children())
    running: dict[Future[None], tuple[ComparedRun, float]] = {}

    def begin() -> None:
        job = waiting.pop(next_job(waiting, seconds))
        with ignore_sigint():
            running[submitted(pool, _perform_inherited, job)] = job.trial, time.monotonic()

    try:
        while waiting or running:
            while waiting and len(running) < count:
                begin()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                trial, began = running.pop(future)
                seconds[trial.method] = time.monotonic() - began
                yield trial, future.exception()
    except KeyboardInterrupt:
        for child in set(active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def next_job(waiting: Sequence[ComparisonJob], seconds: Mapping[str, float]) -> int:
    """Which run to begin next: the first of those that will take longest.

    Args:
        waiting: the runs that have not begun.
        seconds: what a run of a method took, of those that have ended.

    Returns:
        The run's place. A method that nobody knows yet may take long; those that others are measured against do not.
    """

    def expected(place: int) -> float:
        method = waiting[place].trial.method
        return seconds.get(method, 0.0 if method.partition(":")[0] in SHORT else math.inf)

    return max(range(len(waiting)), key=expected)


_inherited = NOTHING
"""In a process of the pool: what Python gave to all runs."""


def _begin(given: Given) -> None:
    """Begin a process of the pool with what Python gave to all runs."""
    global _inherited
    _inherited = given
    begin_child()


def _perform_inherited(job: ComparisonJob) -> None:
    """Do one run in a process of the pool."""
    perform(job, _inherited)


def perform(job: ComparisonJob, given: Given = NOTHING) -> None:
    """Do one run, or resume it, in this process."""
    trial, places = job.trial, {key: job.values[key] for key in ("data_dir", "memory") if key in job.values}
    if RunFolder(trial.folder).has("config.json"):
        resume(
            trial.folder,
            workers=1,
            federation=given.federation,
            model=given.model,
            loss=given.loss,
            progress=False,
            **places,
        )
        return
    config = make_config({**job.values, "method": trial.method, "seed": trial.seed, "workers": 1})
    start(config, out=trial.folder, federation=given.federation, model=given.model, loss=given.loss)
