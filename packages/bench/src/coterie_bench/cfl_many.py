"""CFL with very many clients: what one check costs, and whether sketches decide as half-updates do.

    python -m coterie_bench.cfl_many docs/results/cfl-many.json 10000 100000

Clients hold 20 samples of four Gaussian classes in 20 dimensions; the labels of each of several groups are permuted.
Moderate federations are decided both by half-updates and by sketches; larger ones, of the sizes given, by sketches
alone. Seconds are the process's own; memory is the peak of the process up to the end of the run.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie import Callback, Client, Federation, Result, RoundRecord, Split, run

CLASSES, FEATURES, HIDDEN, SAMPLES, ROUNDS = 4, 20, 64, 20, 5
MODERATE = tuple((clients, groups, seed) for clients in (40, 120, 300) for groups in (1, 2, 4) for seed in (0, 1))
SKETCH = 512


def federation(clients: int, groups: int, seed: int = 0) -> Federation:
    """Clients whose labels are permuted by group, in turn; a client's id begins with its group."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    found = []
    for i in range(clients):
        y = torch.randint(CLASSES, (SAMPLES + 4,), generator=generator)
        x = centres[y] + 0.7 * torch.randn(len(y), FEATURES, generator=generator)
        y = (y + i % groups) % CLASSES
        train, validation, test = (Split(x[at], y[at]) for at in (slice(4, None), slice(0, 2), slice(2, 4)))
        found.append(Client(f"{i % groups}-{i}", train, validation, test))
    return Federation(found)


def network() -> nn.Module:
    """A network of 1,604 numbers: about three times as many as a sketch has."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


class Clock(Callback):
    """The processor seconds of every round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.began = time.process_time()

    def on_round(self, record: RoundRecord) -> None:
        """Note how long the round took; the first one includes setting up."""
        now = time.process_time()
        self.seconds.append(now - self.began)
        self.began = now


def first_check(method: str, given: Federation, clock: Clock) -> Result:
    """CFL up to its first check."""
    return run(
        method, federation=given, model=network, rounds=ROUNDS, lr=0.1, batch_size=None, workers=1, callbacks=[clock]
    )


def misplaced(result: Result, groups: int) -> int:
    """Clients that are not in the cluster that holds most of their group, or all where groups share a cluster."""
    right = 0
    for group in range(groups):
        right += max(sum(c.startswith(f"{group}-") for c in own) for own in result.clusters)
    return sum(map(len, result.clusters)) - right


def compare(clients: int, groups: int, seed: int) -> dict[str, Any]:
    """The decision by half-updates and by sketches on one federation."""
    given, clocks = federation(clients, groups, seed), (Clock(), Clock())
    exact = first_check("cfl:sketch=none", given, clocks[0])
    found = first_check(f"cfl:sketch={SKETCH}", given, clocks[1])
    own, theirs = ({frozenset(c) for c in result.clusters} for result in (found, exact))
    return {
        "clients": clients,
        "groups": groups,
        "seed": seed,
        "clusters": len(theirs),
        "clusters_by_sketches": len(own),
        "same": own == theirs,
        "check_seconds": round(clocks[0].seconds[-1], 2),
        "check_seconds_by_sketches": round(clocks[1].seconds[-1], 2),
    }


def measure(clients: int, groups: int = 4) -> dict[str, Any]:
    """What a round and a check of very many clients cost."""
    clock = Clock()
    result = first_check("cfl", federation(clients, groups), clock)
    return {
        "clients": clients,
        "groups": groups,
        "clusters": len(result.clusters),
        "misplaced": misplaced(result, groups),
        "round_seconds": round(min(clock.seconds[1:-1]), 2),
        "check_seconds": round(clock.seconds[-1], 2),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }


def main(path: str, sizes: list[int]) -> None:
    """Measure, and write the numbers to `path` as they come."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"about": {"torch": torch.__version__, "sketch": SKETCH}, "moderate": [], "many": []}
    work = [("moderate", compare, case) for case in MODERATE] + [("many", measure, (size,)) for size in sizes]
    for kind, what, arguments in work:
        found[kind].append(what(*arguments))
        print(found[kind][-1], flush=True)
        Path(path).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], [int(size) for size in sys.argv[2:]])
