"""Processes beside this one: how they are started, how they begin, and that none outlives the one that started it."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from typing import Any, TypeVar

import torch

from coterie.engines.spawning import start_method

T = TypeVar("T")


def pool_start_method() -> str:
    """Forked processes have torch, the data and what Python gave already; a graphics card cannot be taken along."""
    return "spawn" if torch.cuda.is_available() else start_method()


def begin_child() -> None:
    """Compute with one thread, others use the other cores; and end when the process that started this one is killed."""
    torch.set_num_threads(1)
    parent = parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)  # as good as a kill, which a run folder survives

    threading.Thread(target=follow, daemon=True).start()


@contextmanager
def performed_beside(job: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Do a job in a process of its own meanwhile; what is given waits until it has ended, and raises what it raised."""
    pool = ProcessPoolExecutor(1, mp_context=get_context(pool_start_method()), initializer=begin_child)
    others = set(active_children())
    with ignore_sigint():
        future = submitted(pool, job)
    try:
        yield future.result
    except BaseException:
        for child in set(active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def submitted(pool: ProcessPoolExecutor, job: Callable[..., T], *arguments: Any) -> Future[T]:
    """A job in a process of the pool; if one of them was killed, the pool takes no more, and the job has failed."""
    try:
        with warnings.catch_warnings():
            # Python warns of forks beside threads; the children never touch torch's idle ones.
            warnings.simplefilter("ignore", DeprecationWarning)
            return pool.submit(job, *arguments)
    except BrokenExecutor as problem:
        failed = Future[T]()
        failed.set_exception(problem)
        return failed


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
