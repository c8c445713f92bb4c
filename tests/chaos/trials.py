"""Does faults by number and counts what became of them."""

from __future__ import annotations

import contextlib
import random
import subprocess
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import coterie
from coterie.engines import local
from coterie.runs import loop
from fuzz.folders import told

from .faults import FAULTS, METHODS, MODEL, OPTIONS, Lost, Scene


@dataclass
class Row:
    """One kind of fault: how often it was tried, what became of it, and what was not survived."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)


def chaos(numbers: Sequence[int], seed: int) -> list[Row]:
    """Do the faults with these numbers, each kind in turn."""
    rows = {fault.__name__: Row(fault.__name__) for fault in FAULTS}
    with scene() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in numbers:
            fault = FAULTS[number % len(FAULTS)]
            row = rows[fault.__name__]
            try:
                row.counts[fault(place, random.Random(f"{seed}/{number}"))] += 1
            except Lost as problem:
                row.counts["LOST"] += 1
                text = " ".join(str(problem).split())
                row.lost.append(f"{text}\n    PYTHONPATH=tests python -m chaos --seed {seed} --fault {number}")
    return [row for row in rows.values() if row.counts]


@contextlib.contextmanager
def scene() -> Iterator[Scene]:
    """A folder with a small file system in it, and what the runs give without faults."""
    usual, work = loop.checkpoint_pause, local.WORK_FOR_BLOCK
    loop.checkpoint_pause = lambda cost: 0.0  # a checkpoint after every round, so that a kill can hit it
    local.WORK_FOR_BLOCK = 1  # many blocks, so that every worker has some
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        stack.callback(setattr, loop, "checkpoint_pause", usual)
        stack.callback(setattr, local, "WORK_FOR_BLOCK", work)
        folder = Path(name)
        expected = {}
        for method in METHODS:
            expected[method] = told(coterie.run(method, model=MODEL, **OPTIONS, workers=1))
        coterie.run(METHODS[0], model=MODEL, **OPTIONS, seed=1, workers=1, out=folder / "other")
        place = Scene(folder, expected, 0.0, stack.enter_context(_small_disk(folder / "disk")))
        began = time.monotonic()
        if place.run(METHODS[-1], folder / "run", 2).wait() != 0:
            raise AssertionError("a run without any fault does not end well")
        place.seconds = time.monotonic() - began
        yield place


@contextlib.contextmanager
def _small_disk(place: Path) -> Iterator[Path | None]:
    """A file system in memory, or None where this process may not mount one."""
    place.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
