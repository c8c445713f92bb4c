"""How things are timed: contenders take turns within one run, and the machine's own peak is measured beside them."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coterie.bench.contenders import Contender
from coterie.federation import Split
from coterie.losses import Loss

GEMM_SIDE = 2048
GEMM_TRIES = 3

Say = Callable[[str], None]


@dataclass
class Timing:
    """Seconds of every contender, one number a repetition, and the GEMM peak (FLOP/s) measured in each repetition."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    peaks: list[float] = field(default_factory=list)

    def ratios(self, name: str, against: str) -> list[float]:
        """How many times faster `name` was than `against`, repetition by repetition."""
        return [slow / fast for fast, slow in zip(self.seconds[name], self.seconds[against], strict=True)]

    def shares_of_peak(self, name: str, flops: float) -> list[float]:
        """The share of the GEMM peak at which `name` did work worth so many operations."""
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


def interleaved(contenders: Sequence[Contender], repeat: int, first_round: int, say: Say) -> Timing:
    """Time `repeat` rounds of every contender in turn; every other repetition goes backwards, so that a machine that
    slows down or speeds up favours nobody."""
    timing = Timing({contender.name: [] for contender in contenders})
    for repetition in range(repeat):
        timing.peaks.append(gemm_peak())
        for contender in contenders if repetition % 2 == 0 else list(reversed(contenders)):
            timing.seconds[contender.name].append(seconds_of(partial(contender.round, first_round + repetition)))
        told = ", ".join(f"{name} {values[-1]:.3g} s" for name, values in timing.seconds.items())
        say(f"repetition {repetition + 1} of {repeat}: {told}")
    return timing


def gemm_peak() -> float:
    """Operations a second of a large float32 matrix product with torch's threads: the best of a few."""
    side = GEMM_SIDE
    a, b = torch.rand(side, side), torch.rand(side, side)
    out = torch.empty(side, side)
    best = min(seconds_of(lambda: torch.mm(a, b, out=out)) for _ in range(GEMM_TRIES))
    return 2 * side**3 / best


@dataclass(frozen=True)
class Cost:
    """Floating-point operations that one sample takes: passing forward, and training (forward and backward)."""

    forward: float
    training: float


def cost_of_a_sample(module: nn.Module, loss: Loss, sample: Split) -> Cost:
    """Count the operations of a few samples with torch's own counter and divide."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch tells of Intel GPUs here
        # Without oneDNN an LSTM is made of matrix products, which the counter knows.
        with torch.backends.mkldnn.flags(enabled=False):
            with FlopCounterMode(display=False) as forward:
                value = loss(module(sample.x), sample.y)
            with FlopCounterMode(display=False) as backward:
                value.backward()
    there, back = forward.get_total_flops() / len(sample), backward.get_total_flops() / len(sample)
    return Cost(there, there + back)
