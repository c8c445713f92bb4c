"""The runs of a comparison, one after another or in processes side by side."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from typing import Any

import torch

from coterie.engines.spawning import start_method
from coterie.federation import Federation
from coterie.runs import api
from coterie.runs.assemble import Model
from coterie.runs.config import make_config
from coterie.runs.folder import RunFolder
from coterie.runs.ranking import ComparedRun
from coterie.trainers.losses import Loss


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


def pool_start_method() -> str:
    """Forked processes have torch, the data and what Python gave already; a graphics card cannot be taken along."""
    return "spawn" if torch.cuda.is_available() else start_method()


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
            running[_submitted(pool, job)] = job.trial, time.monotonic()

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


@contextmanager
def performed_beside(job: ComparisonJob) -> Iterator[Callable[[], None]]:
    """Do a run in a process of its own meanwhile; what is given waits until it has ended, and raises what it raised."""
    pool = ProcessPoolExecutor(1, mp_context=get_context(pool_start_method()), initializer=_begin, initargs=(NOTHING,))
    others = set(active_children())
    with ignore_sigint():
        future = _submitted(pool, job)
    try:
        yield future.result
    except BaseException:
        for child in set(active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _submitted(pool: ProcessPoolExecutor, job: ComparisonJob) -> Future[None]:
    """The run in a process of the pool; if one of them was killed, the pool takes no more, and the run has failed."""
    try:
        with warnings.catch_warnings():
            # Python warns of forks beside threads; the children never touch torch's idle ones.
            warnings.simplefilter("ignore", DeprecationWarning)
            return pool.submit(_perform_inherited, job)
    except BrokenExecutor as problem:
        failed = Future[None]()
        failed.set_exception(problem)
        return failed


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


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Processes that are started meanwhile do not hear Ctrl-C: the one that started them does, and ends them."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may say so
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_inherited = NOTHING
"""In a process of the pool: what Python gave to all runs."""


def _begin(given: Given) -> None:
    """Compute with one thread, others use the other cores; and end when the process that started this one is killed."""
    global _inherited
    _inherited = given
    torch.set_num_threads(1)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)  # as good as a kill, which a run folder survives

    threading.Thread(target=follow, daemon=True).start()


def _perform_inherited(job: ComparisonJob) -> None:
    """Do one run in a process of the pool."""
    perform(job, _inherited)


def perform(job: ComparisonJob, given: Given = NOTHING) -> None:
    """Do one run, or resume it, in this process."""
    trial, places = job.trial, {key: job.values[key] for key in ("data_dir", "memory") if key in job.values}
    if RunFolder(trial.folder).has("config.json"):
        api.resume(
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
    api.start(config, out=trial.folder, federation=given.federation, model=given.model, loss=given.loss)
