"""Rows that time whole rounds: Coterie, the plain loop and other frameworks alternate on the same clients."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from coterie import Federation, Split
from coterie.trainers import bfloat16_support, default_loss
from coterie_bench.contenders import OURS, PLAIN, STEADY, Contender, OurRounds, PlainRounds, SteadyRounds
from coterie_bench.findings import BenchOptions, Finding, Limit
from coterie_bench.measure import Spread, Timing, cost_per_sample, interleaved, seconds_of
from coterie_bench.others import load_contender
from coterie_bench.workloads import Workload

WARM_UP = 2
"""Clients with which the plain loop warms up; Coterie's first round has all of them."""
SAMPLES_COUNTED = 4
"""Samples on which operations are counted."""


def time_rounds(
    options: BenchOptions,
    workload: Workload,
    title: str,
    limit: Limit,
    *,
    precision: str = "float32",
    share: Limit | None = None,
    others: Mapping[str, Limit] | None = None,
    steady: bool = False,
) -> Finding:
    """Rounds of one workload; limits against the plain loop, for the share of the GEMM peak, and by framework."""
    workload = workload if options.full else workload.quick()
    finding = Finding(_full_title(title, workload))
    support = bfloat16_support() if precision == "bf16" else "native"
    if support == "broken" or (support == "emulated" and not options.bf16):
        finding.leave_out(limit, "not timed: this processor has no bfloat16 instructions")
        return finding
    federation = workload.federation(options.seed)
    ours = OurRounds(workload, federation, options.seed, options.workers, precision)
    contenders: list[Contender] = [ours]
    try:
        finding.first_round[OURS] = seconds_of(partial(ours.round, 1))
        plain = PlainRounds(workload, federation, ours.server)
        plain.round(1, WARM_UP)
        contenders.append(plain)
        if options.one_thread:
            contenders.append(PlainRounds(workload, federation, ours.server, threads=1))
        if steady:
            contenders.append(SteadyRounds(ours))
        for name, needed in (others or {}).items():
            began = time.perf_counter()
            found = load_contender(name, workload, federation, ours.server)
            if isinstance(found, str):
                finding.leave_out(needed, found)
                continue
            contenders.append(found)
            finding.first_round[name] = time.perf_counter() - began
        options.log(f"first round: {', '.join(f'{n} {s:.3g} s' for n, s in finding.first_round.items())}")
        timing = interleaved(contenders, options.repeat, 2, options.log)
    finally:
        for contender in contenders:
            contender.close()
    _conclude(finding, timing, workload, federation, limit, share, others or {})
    return finding


def _conclude(
    finding: Finding,
    timing: Timing,
    workload: Workload,
    federation: Federation,
    limit: Limit,
    share: Limit | None,
    others: Mapping[str, Limit],
) -> None:
    flops = operations(workload, federation)
    finding.seconds = timing.seconds
    finding.details |= {"operations": flops, "gemm_peak": timing.peaks, "cpu_seconds": timing.cpu}
    finding.details["floor"] = flops / Spread.of(timing.peaks).median
    shares = {name: Spread.of(timing.shares_of_peak(name, flops)).median for name in timing.seconds if name != STEADY}
    finding.details["shares_of_peak"] = shares
    against = partial(_against, timing, shares)
    usage = _usage(shares)
    finding.judge(limit, Spread.of(timing.ratios(OURS, PLAIN)), why=usage, **against(PLAIN))
    if share is not None:
        spread = Spread.of([100 * value for value in timing.shares_of_peak(OURS, flops)])
        finding.judge(share, spread, why=f"the plain loop reaches {100 * shares[PLAIN]:.0f} %", **against(PLAIN))
    for name in timing.cpu:
        if name not in (OURS, STEADY):
            finding.notes.append(f"per processor second: {_text(Spread.of(timing.cpu_ratios(OURS, name)))} × {name}")
    for name, needed in others.items():
        if name in timing.seconds:
            finding.judge(needed, Spread.of(timing.ratios(OURS, name)), why=usage, **against(name))
    for name in timing.seconds:
        if name == STEADY:
            spread = Spread.of(timing.ratios(STEADY, PLAIN))
            finding.notes.append(f"once choices are stable, without the losses: {_text(spread)} × the plain loop")
        elif name.startswith(f"{PLAIN},"):
            finding.notes.append(f"against the {name}: {_text(Spread.of(timing.ratios(OURS, name)))} ×")


def operations(workload: Workload, federation: Federation) -> float:
    """Floating-point operations of one round in the plain loop, counted by torch."""
    data = federation.clients[0].train
    few = min(SAMPLES_COUNTED, len(data))
    loss = default_loss(federation.regression)
    cost = cost_per_sample(workload.architecture()(0), loss, Split(data.x[:few], data.y[:few]))
    batch = min(workload.training.batch_size or len(data), len(data))
    seen = workload.training.steps * batch if workload.training.steps else workload.training.epochs * len(data)
    chosen = workload.k * len(data) * cost.forward if workload.k > 1 else 0.0
    return workload.participants * (seen * cost.training + chosen)


def _against(timing: Timing, shares: Mapping[str, float], name: str) -> dict[str, Any]:
    return {
        "ours": Spread.of(timing.seconds[OURS]).median,
        "theirs": Spread.of(timing.seconds[name]).median,
        "ours_cpu": Spread.of(timing.cpu[OURS]).median,
        "theirs_cpu": Spread.of(timing.cpu[name]).median,
        "shares": {"ours": shares[OURS], "theirs": shares[name]},
    }


def _usage(shares: Mapping[str, float]) -> str:
    """How much of the machine each of the two uses, which bounds the gain."""
    ours, plain = 100 * shares[OURS], 100 * shares[PLAIN]
    return f"the plain loop runs at {plain:.0f} % of the GEMM peak and Coterie at {ours:.0f} %"


def _text(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"


def _full_title(title: str, workload: Workload) -> str:
    who = f"{workload.participants} of {workload.clients}" if workload.participation < 1 else f"{workload.clients}"
    return f"{title}: {who} clients × {workload.samples}"
