"""The row for the server's own work in CFL: all cosine similarities and the best split, beside one matrix product."""

from __future__ import annotations

import numpy as np
import torch

from coterie.clustering import Bipartition, bipartition, cosine_matrix
from coterie.randomness import torch_generator
from coterie_bench.findings import BenchOptions, Finding, Limit
from coterie_bench.measure import Spread, Timing, gemm_peak, seconds_of
from coterie_bench.workloads import QUICK

UPDATES = 2000
SIZE = 160_000
WITHIN = Limit("× one GEMM", 1.3, at_most=True)
SPLIT_SECONDS = Limit("s for the bipartition", 0.1, at_most=True)


def time_server(options: BenchOptions, clients: int = UPDATES, size: int = SIZE) -> Finding:
    """Cosine matrix and bipartition of updates `(M, d)` against the product of the updates with themselves."""
    clients = clients if options.full else clients // QUICK
    updates = made_updates(clients, size, options.seed)
    finding = Finding(f"server: cosine matrix and bipartition, M={clients}, d={size}")
    product = torch.empty(clients, clients)
    timing = Timing({"coterie": [], "one GEMM": []})
    splits: list[float] = []

    def ours() -> Bipartition:
        similarity = cosine_matrix(updates)
        found: list[Bipartition] = []
        splits.append(seconds_of(lambda: found.append(bipartition(similarity))))
        return found[0]

    first = ours()
    assert np.array_equal(first.first, np.arange(0, clients, 2)), "the two groups were not found"
    splits.clear()
    for repetition in range(options.repeat):
        timing.peaks.append(gemm_peak())
        timing.seconds["one GEMM"].append(seconds_of(lambda: torch.mm(updates, updates.T, out=product)))
        timing.seconds["coterie"].append(seconds_of(ours))
        seconds_text = ", ".join(f"{name} {values[-1]:.3g} s" for name, values in timing.seconds.items())
        options.log(f"repetition {repetition + 1} of {options.repeat}: {seconds_text}, bipartition {splits[-1]:.3g} s")
    finding.seconds = {**timing.seconds, "bipartition": splits}
    flops = 2.0 * clients * clients * size
    shares = {name: Spread.of(timing.shares_of_peak(name, flops)).median for name in timing.seconds}
    finding.details |= {"operations": flops, "gemm_peak": timing.peaks, "shares_of_peak": shares}
    seconds = {name: Spread.of(values).median for name, values in finding.seconds.items()}
    finding.judge(
        WITHIN,
        Spread.of(timing.ratios("one GEMM", "coterie")),
        ours=seconds["coterie"],
        theirs=seconds["one GEMM"],
        shares={"ours": shares["coterie"], "theirs": shares["one GEMM"]},
        why="norms, scaling and float64 sums take longer than the half of the product that is saved",
    )
    finding.judge(SPLIT_SECONDS, Spread.of(splits), ours=seconds["bipartition"])
    return finding


def made_updates(clients: int, size: int, seed: int) -> torch.Tensor:
    """Updates `(clients, size)` of two groups, every other client in each: one shared direction and noise."""
    generator = torch_generator(seed, "bench", "updates")
    updates = torch.randn(clients, size, generator=generator)
    direction = torch.randn(size, generator=generator)
    updates[0::2] += direction
    updates[1::2] -= direction
    return updates
