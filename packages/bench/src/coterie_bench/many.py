"""Rows with very many clients of which few take part: set-up, a round of a whole run, and memory."""

from __future__ import annotations

import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from coterie import Callback, Client, Federation, RoundRecord, Split, run
from coterie_bench.findings import BenchOptions, Finding, Limit
from coterie_bench.measure import Spread

FEATURES, SAMPLES, CLASSES, SHARE = 10, 4, 3, 0.01
ROUNDS = 6
MANY, MILLION = 10_000, 1_000_000
ROUND_OF_MANY = Limit("s per round", 0.03, at_most=True)
ROUND_OF_MILLION = Limit("s per round", 1.0, at_most=True)
SET_UP = Limit("s to check the clients and set up", 30.0, at_most=True)
PEAK = Limit("GB at the most", 4.0, at_most=True)
QUICK = 100_000
"""Clients in place of a million at quick scale."""


class Clock(Callback):
    """Seconds on the clock and of the processor from one round's end to the next."""

    def __init__(self) -> None:
        self.began: list[tuple[float, float]] = []

    def on_round(self, record: RoundRecord) -> None:
        """Note when the round ended."""
        self.began.append((time.perf_counter(), time.process_time()))

    def each(self, which: int) -> list[float]:
        """The seconds of every round but the first."""
        return [after[which] - before[which] for before, after in zip(self.began, self.began[1:], strict=False)]


def measure_many(clients: int, seed: int) -> dict[str, Any]:
    """One run in this process: seconds of its parts, and the most memory that it had."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(clients * (SAMPLES + 1), FEATURES, generator=generator)
    y = torch.randint(CLASSES, (len(x),), generator=generator)
    made, began = [], time.perf_counter()
    for i in range(clients):
        start = i * (SAMPLES + 1)
        train, test = slice(start, start + SAMPLES), slice(start + SAMPLES, start + SAMPLES + 1)
        few = slice(start, start)
        made.append(Client(f"{i}", Split(x[train], y[train]), Split(x[few], y[few]), Split(x[test], y[test])))
    found: dict[str, Any] = {"making the clients": time.perf_counter() - began}
    began = time.perf_counter()
    federation = Federation(made)
    found["checking them"] = time.perf_counter() - began
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run(
            "fedavg",
            federation=federation,
            model="logistic",
            participation=SHARE,
            rounds=ROUNDS,
            seed=seed,
            workers=1,
            out=Path(folder) / "run",
            callbacks=[clock],
        )
        ended = time.perf_counter()
    rounds = clock.each(0)
    # The first round cannot be told from the set-up; it is as long as the others.
    found["set-up"] = clock.began[0][0] - began - Spread.of(rounds).median
    found |= {
        "rounds": rounds,
        "rounds, processor": clock.each(1),
        "last evaluation and files": ended - clock.began[-1][0],
    }
    found["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return found


def in_a_new_process(clients: int, seed: int) -> dict[str, Any]:
    """The same in a process of its own, so that the memory is the run's alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure_many, clients, seed).result()


def time_many(options: BenchOptions, clients: int = MANY, limit: Limit = ROUND_OF_MANY) -> Finding:
    """Rounds of a run in which one client of a hundred takes part; every client is evaluated once, at the end."""
    finding = Finding(f"FedAvg with {clients} clients, {SHARE:.0%} a round, records and files included")
    found = in_a_new_process(clients, options.seed)
    finding.seconds = {"coterie": found["rounds"]}
    finding.details = found
    cpu = Spread.of(found["rounds, processor"]).median
    finding.judge(limit, Spread.of(found["rounds"]), ours=Spread.of(found["rounds"]).median, ours_cpu=cpu)
    return finding


def time_million(options: BenchOptions) -> Finding:
    """The same with a million clients, and with what setting up takes in time and memory."""
    finding = time_many(options, MILLION if options.full else QUICK, ROUND_OF_MILLION)
    found = finding.details
    ready = found["checking them"] + found["set-up"]
    finding.judge(SET_UP, Spread(ready, ready, ready), ours=ready)
    finding.judge(PEAK, Spread(found["gigabytes"], found["gigabytes"], found["gigabytes"]))
    finding.notes.append(f"making the clients takes {found['making the clients']:.3g} s before that")
    return finding
