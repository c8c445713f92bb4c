"""The row for memory: what a round needs beside the data, in a child process and all of its workers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from coterie_bench.contenders import OurRounds
from coterie_bench.findings import BenchOptions, Finding, Limit
from coterie_bench.measure import Spread
from coterie_bench.workloads import W1_50, Workload

PROC = Path("/proc")
EVERY = 0.05
"""Seconds between two samples of the memory."""
ROUNDS = 3
ABOVE_THE_DATA = Limit("GB above the data", 1.5, at_most=True)


def measure_memory(options: BenchOptions, workload: Workload = W1_50) -> Finding:
    """The highest sum of the processes' proportional shares (PSS) in a few rounds, less the size of the data."""
    workload = workload if options.full else workload.quick()
    finding = Finding(f"peak memory of the IFCA round: {workload.clients} clients × {workload.samples}")
    if not (PROC / "self" / "smaps_rollup").exists():
        finding.leave_out(ABOVE_THE_DATA, "not measured: it is read from Linux's /proc")
        return finding
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=_rounds, args=(theirs, workload, options.seed, options.workers), name="coterie-bench-memory"
    )
    child.start()
    theirs.close()
    try:
        assert child.pid is not None
        data = int(ours.recv())
        before = family_bytes(child.pid)
        ours.send("go")
        peaks = []
        for t in range(1, ROUNDS + 1):
            peaks.append(_peak_of_round(child.pid, ours))
            options.log(f"round {t} of {ROUNDS}: {peaks[-1] / 1e9:.2f} GB, of which the data {data / 1e9:.2f} GB")
    finally:
        ours.close()
        child.join(10)
        if child.is_alive():
            child.kill()
            child.join()
    highest = (max(peaks) - data) / 1e9
    finding.judge(ABOVE_THE_DATA, Spread(highest, highest, highest))
    finding.details |= {"data_bytes": data, "before_bytes": before, "peak_bytes": peaks}
    finding.notes.append(f"this includes Python and torch: {(before - data) / 1e9:.2f} GB before the first round")
    return finding


def _rounds(connection: Connection, workload: Workload, seed: int, workers: int) -> None:
    """In a process of its own: make the data, send its size, and do rounds after a signal."""
    federation = workload.federation(seed)
    connection.send(sum(c.train.x.nbytes + c.train.y.nbytes for c in federation))
    with suppress(EOFError):  # the parent ended
        connection.recv()
        ours = OurRounds(workload, federation, seed, workers)
        for t in range(1, ROUNDS + 1):
            ours.round(t)
            connection.send(t)
        ours.close()


def _peak_of_round(pid: int, connection: Connection) -> int:
    """The largest memory sampled until the child reports the end of its round."""
    peak = family_bytes(pid)
    while not connection.poll(EVERY):
        peak = max(peak, family_bytes(pid))
    connection.recv()
    return max(peak, family_bytes(pid))


def family_bytes(pid: int) -> int:
    """The memory of a process and its descendants; memory that several of them share counts once."""
    return sum(_proportional_bytes(member) for member in family(pid))


def family(pid: int) -> set[int]:
    """The process and all its descendants."""
    parents = dict(_parents())
    members = {pid}
    grown = True
    while grown:
        more = {child for child, parent in parents.items() if parent in members} - members
        members |= more
        grown = bool(more)
    return members


def _parents() -> Iterable[tuple[int, int]]:
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # the process has ended
                # The name in brackets may hold spaces; the state and the parent's id come after it.
                yield int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def _proportional_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0
