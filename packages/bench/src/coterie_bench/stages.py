"""Rows that time parts of a run in new processes: FLT's first stage, and rounds on Ray beside worker processes."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from statistics import median
from typing import Literal

from coterie import run
from coterie.errors import CoterieError
from coterie.runs import assemble, make_config
from coterie_bench.findings import BenchOptions, Finding, Limit
from coterie_bench.measure import Spread, cpu_seconds
from coterie_bench.workloads import W3

FLT_FEW = Limit("s, 40 clients", 4.0, at_most=True)
FLT_MANY = Limit("s, 2,400 clients", 45.0, at_most=True)
FEDERATIONS = {"flt-s4-digits": (40, FLT_FEW), "flt-s4": (2400, FLT_MANY)}
RAY_RATIO = Limit("× worker processes", 1.1, at_most=True)
RAY_ROUNDS = 8
Engine = Literal["ray", "local"]


def first_stage(scenario: str, clients: int, seed: int) -> tuple[float, float]:
    """Seconds on the clock and of the processor until FLT knows who is related, importing UMAP included."""
    config = make_config({"scenario": scenario, "clients": clients, "seed": seed, "workers": 1, "method": "flt"})
    assembled, _ = assemble(config)
    before, began = cpu_seconds(), time.perf_counter()
    try:
        assembled.method.start(assembled.server)
        return time.perf_counter() - began, cpu_seconds() - before
    finally:
        assembled.engine.close()


def time_flt(options: BenchOptions) -> Finding:
    """FLT's first stage on two federations of the paper's fourth scenario."""
    finding = Finding("FLT, first stage: embedding, layout and decision")
    for scenario, (clients, limit) in FEDERATIONS.items():
        if find_spec("umap") is None:
            finding.leave_out(limit, "not timed: it needs UMAP (pip install 'coterie[flt]')")
            continue
        times = []
        for _ in range(options.repeat if clients < 100 else 1):
            try:
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    some = clients if options.full else max(20, clients // 10)
                    times.append(pool.submit(first_stage, scenario, some, options.seed).result())
            except CoterieError as problem:
                finding.leave_out(limit, f"not timed: {problem}")
                break
            options.log(f"{scenario}, {some} clients: {times[-1][0]:.3g} s")
        else:
            seconds = [wall for wall, _ in times]
            finding.seconds[scenario] = seconds
            finding.judge(limit, Spread.of(seconds), ours=median(seconds), ours_cpu=median(cpu for _, cpu in times))
    return finding


def round_seconds(engine: Engine, workers: int, clients: int, seed: int) -> float:
    """The median round of a run on an engine, without its first two rounds, which fill caches."""
    federation = W3.federation(seed) if clients == W3.clients else W3.quick().federation(seed)
    found = run(
        "fedavg",
        federation=federation,
        model=W3.model,
        rounds=RAY_ROUNDS,
        participation=W3.participation,
        seed=seed,
        engine=engine,
        workers=workers,
        lr=W3.training.lr,
        epochs=W3.training.epochs,
        batch_size=W3.training.batch_size,
    )
    return median(record.seconds for record in found.history[2:])


def time_ray(options: BenchOptions) -> Finding:
    """Rounds of FedAvg with the MNIST-sized clients on Ray and in worker processes, in turn."""
    workload = W3 if options.full else W3.quick()
    finding = Finding(f"Ray: {workload.participants} of {workload.clients} clients × {workload.samples}")
    if find_spec("ray") is None:
        finding.leave_out(RAY_RATIO, "not timed: it needs Ray (pip install 'coterie[ray]')")
        return finding
    found: dict[Engine, list[float]] = {"ray": [], "local": []}
    for repetition in range(options.repeat):
        for engine, seconds in found.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                job = pool.submit(round_seconds, engine, options.workers, workload.clients, options.seed)
                seconds.append(job.result())
        last = ", ".join(f"{engine} {seconds[-1]:.3g} s" for engine, seconds in found.items())
        options.log(f"repetition {repetition + 1} of {options.repeat}: {last}")
    finding.seconds = {str(engine): seconds for engine, seconds in found.items()}
    ratios = [ray / local for ray, local in zip(found["ray"], found["local"], strict=True)]
    finding.judge(RAY_RATIO, Spread.of(ratios), ours=median(found["ray"]), theirs=median(found["local"]))
    return finding
