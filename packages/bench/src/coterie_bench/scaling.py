"""Rows with many clients: the overhead of a round with almost no computation, and how seconds grow with clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coterie_bench.contenders import OURS, PLAIN, OurRounds, PlainRounds
from coterie_bench.findings import BenchOptions, Finding, Limit
from coterie_bench.measure import Spread, interleaved, seconds_of
from coterie_bench.workloads import OVERHEAD, QUICK, W1_50, Workload

CLIENTS = (100, 300, 1000, 3000, 10_000)
LINEAR = Limit("as slope of log seconds over log clients", 1.1, at_most=True)
ROUND_SECONDS = Limit("s per round", 1.0, at_most=True)


def time_overhead(options: BenchOptions) -> Finding:
    """A round of very many clients, each with one sample and one step of a tiny model."""
    workload = OVERHEAD if options.full else OVERHEAD.quick()
    federation = workload.federation(options.seed)
    finding = Finding(f"overhead: {workload.clients} clients × 1 sample, one step of a 10-parameter model")
    ours = OurRounds(workload, federation, options.seed, "auto")
    try:
        finding.first_round[OURS] = seconds_of(partial(ours.round, 1))
        plain = PlainRounds(workload, federation, ours.server)
        plain.round(1, 2)
        timing = interleaved([ours, plain], options.repeat, 2, options.log)
    finally:
        ours.close()
    finding.seconds = timing.seconds
    medians = {name: Spread.of(values).median for name, values in timing.seconds.items()}
    limit = ROUND_SECONDS if options.full else replace(ROUND_SECONDS, number=ROUND_SECONDS.number / QUICK)
    finding.judge(limit, Spread.of(timing.seconds[OURS]), ours=medians[OURS], theirs=medians[PLAIN])
    ratio = Spread.of(timing.ratios(OURS, PLAIN))
    finding.notes.append(f"{ratio.median:.1f} × the plain loop ({ratio.low:.1f}-{ratio.high:.1f})")
    return finding


def time_growth(options: BenchOptions, workload: Workload = W1_50, counts: Sequence[int] = CLIENTS) -> Finding:
    """Seconds of an IFCA round for growing numbers of clients, of Coterie only."""
    counts = counts if options.full else [count // QUICK for count in counts]
    finding = Finding(f"growth: IFCA rounds of {counts[0]} to {counts[-1]} clients × {workload.samples}")
    seconds: dict[int, list[float]] = {}
    for count in counts:
        some = replace(workload, clients=count)
        ours = OurRounds(some, some.federation(options.seed), options.seed, options.workers)
        try:
            ours.round(1)
            seconds[count] = [seconds_of(partial(ours.round, t)) for t in range(2, 2 + options.repeat)]
        finally:
            ours.close()
        options.log(f"{count} clients: {Spread.of(seconds[count]).median:.3g} s per round")
    medians = {count: Spread.of(values).median for count, values in seconds.items()}
    found = slope(list(medians), list(medians.values()))
    finding.seconds = {f"{count} clients": values for count, values in seconds.items()}
    finding.details |= {"clients": list(medians), "medians": list(medians.values()), "slope": found}
    finding.judge(LINEAR, Spread(found, found, found), ours=medians[counts[-1]])
    each = ", ".join(f"{count}: {1e3 * value / count:.3g}" for count, value in medians.items())
    finding.notes.append(f"milliseconds per client and round, by number of clients: {each}")
    return finding


def slope(clients: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent p of seconds ∝ clients^p, by least squares on the logarithms."""
    logs = np.log(np.asarray(clients, float)), np.log(np.asarray(seconds, float))
    return float(np.polyfit(*logs, 1)[0])


def draw_growth(details: dict[str, Any], path: Path) -> None:
    """Draw seconds over clients with a straight line through the largest."""
    from matplotlib.figure import Figure

    clients, medians = details["clients"], details["medians"]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.loglog(clients, medians, "o-", label=f"measured, slope {details['slope']:.2f}")
    proportional = [medians[-1] * count / clients[-1] for count in clients]
    axes.loglog(clients, proportional, "--", color="grey", label="proportional to clients")
    axes.set_xlabel("clients")
    axes.set_ylabel("seconds per round")
    axes.set_xticks(clients, [str(count) for count in clients])
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
