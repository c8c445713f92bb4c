"""Timing: contenders alternate within one run, and the machine's GEMM peak is measured in every repetition."""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coterie import Split
from coterie.trainers import Loss
from coterie_bench.contenders import Contender

GEMM_SIDE = 2048
GEMM_TRIES = 3
SMALL_SIDE, ALONE = 256, 2000
"""Side and number of the products by which it is seen whether two processes slow each other down."""

Log = Callable[[str], None]


@dataclass
class Timing:
    """Seconds of every contender, one number per repetition, and the GEMM peak (FLOP/s) of each repetition."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    peaks: list[float] = field(default_factory=list)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    """Processor seconds, those of worker processes included: other programs on the machine change them less."""

    def ratios(self, name: str, against: str) -> list[float]:
        """How many times faster `name` was than `against`, repetition by repetition."""
        return [slow / fast for fast, slow in zip(self.seconds[name], self.seconds[against], strict=True)]

    def cpu_ratios(self, name: str, against: str) -> list[float]:
        """How many times fewer processor seconds `name` took than `against`, repetition by repetition."""
        return [slow / fast for fast, slow in zip(self.cpu[name], self.cpu[against], strict=True)]

    def shares_of_peak(self, name: str, flops: float) -> list[float]:
        """`flops` over the seconds of `name`, as a fraction of the GEMM peak, repetition by repetition."""
        return [flops / seconds / peak for seconds, peak in zip(self.seconds[name], self.peaks, strict=True)]


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of several measurements."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def as_dict(self) -> dict[str, float]:
        return {"median": self.median, "low": self.low, "high": self.high}


def seconds_of(work: Callable[[], Any]) -> float:
    """Wall-clock seconds that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu_seconds() -> float:
    """Processor seconds so far of this process and of all that it started; living ones where /proc shows them."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    parents: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of the program, in brackets, may hold anything; state and parent come after it.
            values = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(values[1]), sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")
    mine = {os.getpid()}
    while new := {pid for pid, (parent, _) in parents.items() if parent in mine and pid not in mine}:
        total += sum(parents[pid][1] for pid in new)
        mine |= new
    return total


def interleaved(contenders: Sequence[Contender], repeat: int, first_round: int, log: Log) -> Timing:
    """Time `repeat` rounds of every contender in turn.

    Every other repetition has the reverse order, so that a machine that slows down or speeds up favours no contender.
    """
    timing = Timing(
        {contender.name: [] for contender in contenders}, cpu={contender.name: [] for contender in contenders}
    )
    for repetition in range(repeat):
        timing.peaks.append(gemm_peak())
        for contender in contenders if repetition % 2 == 0 else list(reversed(contenders)):
            before = cpu_seconds()
            timing.seconds[contender.name].append(seconds_of(partial(contender.round, first_round + repetition)))
            timing.cpu[contender.name].append(cpu_seconds() - before)
        seconds = ", ".join(f"{name} {values[-1]:.3g} s" for name, values in timing.seconds.items())
        log(f"repetition {repetition + 1} of {repeat}: {seconds}")
    return timing


def gemm_peak() -> float:
    """Operations per second of a large float32 matrix product with torch's threads, the best of several tries."""
    side = GEMM_SIDE
    a, b = torch.rand(side, side), torch.rand(side, side)
    out = torch.empty(side, side)
    best = min(seconds_of(lambda: torch.mm(a, b, out=out)) for _ in range(GEMM_TRIES))
    return 2 * side**3 / best


def two_at_once() -> float:
    """How many times as much two processes do as one: 2 where the machine has two cores for us, 1 where it has one."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(_products, [1, 1]))  # both have started
        alone = pool.submit(_products, ALONE).result()
        both = [job.result() for job in [pool.submit(_products, ALONE) for _ in range(2)]]
    return 2 * alone / max(both)


def _products(count: int) -> float:
    """Seconds for so many products of matrices that fit a core's cache, in one thread."""
    torch.set_num_threads(1)
    a = torch.rand(SMALL_SIDE, SMALL_SIDE)
    began = time.perf_counter()
    for _ in range(count):
        torch.mm(a, a)
    return time.perf_counter() - began


@dataclass(frozen=True)
class Cost:
    """Floating-point operations per sample: of the forward pass, and of training (forward and backward)."""

    forward: float
    training: float


def cost_per_sample(module: nn.Module, loss: Loss, sample: Split) -> Cost:
    """Operations per sample, counted by torch on a few samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of missing Intel GPUs here
        # Without oneDNN an LSTM consists of matrix products, which the counter knows.
        with torch.backends.mkldnn.flags(enabled=False):
            with FlopCounterMode(display=False) as forward:
                value = loss(module(sample.x), sample.y)
            with FlopCounterMode(display=False) as backward:
                value.backward()
    there, back = forward.get_total_flops() / len(sample), backward.get_total_flops() / len(sample)
    return Cost(there, there + back)
