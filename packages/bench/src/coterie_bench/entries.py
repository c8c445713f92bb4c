"""The rows of the benchmark by name, with the limits that each must meet on two cores."""

from __future__ import annotations

from functools import partial

from coterie.errors import ConfigError, did_you_mean
from coterie_bench import commands, many, stages, workloads
from coterie_bench.fedjax_rounds import FEDJAX
from coterie_bench.findings import Entry, Limit
from coterie_bench.memory import ABOVE_THE_DATA, measure_memory
from coterie_bench.others import FEDLAB, FLOWER, FLUKE
from coterie_bench.pfl_rounds import PFL
from coterie_bench.rounds import time_rounds
from coterie_bench.scaling import LINEAR, ROUND_SECONDS, time_growth, time_overhead
from coterie_bench.server_side import SPLIT_SECONDS, WITHIN, time_server
from coterie_bench.workloads import Workload

TIMES_PLAIN = "× plain loop"


def _rounds(
    name: str,
    title: str,
    workload: Workload,
    times: float,
    *,
    precision: str = "float32",
    share: float | None = None,
    others: dict[str, float] | None = None,
    steady: bool = False,
) -> Entry:
    limit = Limit(TIMES_PLAIN, times)
    shares = None if share is None else Limit("% of GEMM peak", share)
    needed = {other: Limit(f"× {other}", number) for other, number in (others or {}).items()}
    measure = partial(
        time_rounds,
        workload=workload,
        title=title,
        limit=limit,
        precision=precision,
        share=shares,
        others=needed,
        steady=steady,
    )
    limits = [limit, *([shares] if shares else []), *needed.values()]
    return Entry(name, title, tuple(map(str, limits)), measure)


ENTRIES = {
    entry.name: entry
    for entry in (
        _rounds("w1-200", "IFCA, 4 models' losses, MLP, 10 full-batch steps", workloads.W1_200, 6, steady=True),
        _rounds("w1-50", "IFCA, 4 models' losses, MLP, 10 full-batch steps", workloads.W1_50, 15, steady=True),
        _rounds("w2", "five-layer CNN, batch 100, 3 epochs", workloads.W2, 1.4),
        _rounds("w2-bf16", "five-layer CNN, batch 100, 3 epochs, bf16", workloads.W2, 2.2, precision="bf16"),
        _rounds(
            "w3",
            "FedAvg, MLP, batch 10",
            workloads.W3,
            6,
            share=33,
            others={FLOWER: 8, FLUKE: 6, FEDLAB: 6, FEDJAX: 2.2, PFL: 4.5},
        ),
        _rounds("w3-5", "FedAvg, MLP, batch 10, 5 epochs", workloads.W3_5, 6, others={FEDJAX: 3}),
        _rounds("demo", "FedAvg as in `coterie run`, MLP, batch 32, 3 epochs", workloads.DEMO, 4.5, share=33),
        _rounds("cfl", "CFL, MLP, batch 10, a round without a check", workloads.CFL_MANY, 4.5, share=33),
        _rounds("w4", "LEAF's CNN, batch 10", workloads.W4, 2.2, others={FEDJAX: 2.2}),
        _rounds("w4-bf16", "LEAF's CNN, batch 10, bf16", workloads.W4, 2, precision="bf16"),
        _rounds("w5", "ResNet-18, batch 50", workloads.W5, 1, share=92),
        _rounds("w5-bf16", "ResNet-18, batch 50, bf16", workloads.W5, 1.8, precision="bf16"),
        _rounds("w6", "two-layer LSTM, batch 10", workloads.W6, 1),
        _rounds("w6-bf16", "two-layer LSTM, batch 10, bf16", workloads.W6, 1.5, precision="bf16"),
        Entry(
            "server",
            "cosine matrix and bipartition, M=2000, d=160000",
            (str(WITHIN), str(SPLIT_SECONDS)),
            time_server,
        ),
        Entry("overhead", "10000 clients × 1 sample, one step of 10 parameters", (str(ROUND_SECONDS),), time_overhead),
        Entry("memory", "peak memory of the IFCA round of 4800 clients", (str(ABOVE_THE_DATA),), measure_memory),
        Entry(
            "start",
            "the command and the package, in new processes",
            (str(commands.HELP_SECONDS), str(commands.IMPORT_RATIO)),
            commands.time_start,
        ),
        Entry("run", "`coterie run`, which `make demo` is", (str(commands.DEMO_SECONDS),), commands.time_demo),
        Entry("compare", "`coterie compare` on two cores", (str(commands.COMPARE_RATIO),), commands.time_compare),
        Entry("deploy", "`coterie deploy --local 4`", (str(commands.DEPLOY_SECONDS),), commands.time_deploy),
        Entry("ray", "FedAvg on Ray", (str(stages.RAY_RATIO),), stages.time_ray),
        Entry("flt", "FLT's first stage", (str(stages.FLT_FEW), str(stages.FLT_MANY)), stages.time_flt),
        Entry("many", "10,000 clients, 1 % a round", (str(many.ROUND_OF_MANY),), many.time_many),
        Entry(
            "million",
            "1,000,000 clients, 1 % a round",
            (str(many.ROUND_OF_MILLION), str(many.SET_UP), str(many.PEAK)),
            many.time_million,
        ),
        Entry("growth", "seconds per round for 100 to 10000 clients", (str(LINEAR),), time_growth),
    )
}


def find_entries(names: tuple[str, ...]) -> list[Entry]:
    """The rows of these names, or all without names; ConfigError with a suggestion for an unknown one."""
    for name in names:
        if name not in ENTRIES:
            raise ConfigError(f"unknown benchmark {name!r}: {did_you_mean(name, ENTRIES)}")
    return [entry for name, entry in ENTRIES.items() if not names or name in names]
