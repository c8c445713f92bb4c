"""What CFL's checks cost where they find nothing: CPU seconds and bytes of a run with checks against one without."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from coterie import Federation, run
from coterie.data import BuildOptions, combined
from coterie.randomness import derive
from coterie_recipes.base import Findings, Row, Study, recipe

SIZES: dict[str, dict[str, Any]] = {
    "digits, 20 clients of about 72": {"source": "digits", "samples": None, "model": "mlp:hidden=32"},
    "MNIST, 20 clients of 300": {"source": "mnist", "samples": 300, "model": "mlp:hidden=200"},
}
SETTINGS = (("iid", 1.0), ("dirichlet 0.3", 1.0), ("iid", 0.3))
ROUNDS = 100
NEVER = ROUNDS + 1


def federation_of(source: str, samples: int | None, shift: str, seed: int, data_dir: str | None) -> Federation:
    """Twenty congruent clients."""
    folder = None if data_dir is None else Path(data_dir)
    options = BuildOptions(shift, 20, samples, 1, derive(seed, "cfl-cost"), folder)
    return combined(f"{source}:none" if shift == "iid" else f"{source}:none+dirichlet(0.3)")(options)


def measure(size: str, shift: str, participation: float, seed: int, data_dir: str | None) -> dict[str, float]:
    """CPU seconds and bytes of three runs without checks and three with, in turn; the medians."""
    how = SIZES[size]
    federation = federation_of(how["source"], how["samples"], shift, seed, data_dir)
    options: dict[str, Any] = {
        "model": how["model"], "lr": 0.1, "epochs": 3, "batch_size": 32, "rounds": ROUNDS, "seed": seed, "workers": 1,
        "participation": participation, "evaluate_every": ROUNDS, "progress": False,
    }  # fmt: skip
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    sent: dict[str, float] = {}
    for _ in range(3):
        for name, method in (("without", f"cfl:fallback=false,min_rounds={NEVER}"), ("with", "cfl:fallback=false")):
            start = time.process_time()
            result = run(method, federation, **options)
            seconds[name].append(time.process_time() - start)
            sent[name] = float(result.summary.bytes.up)
    middle = {name: sorted(values)[1] for name, values in seconds.items()}
    return {"cpu": middle["with"] / middle["without"], "bytes": sent["with"] / sent["without"], **middle}


@recipe("cfl-cost", "what CFL's checks cost where there is nothing to split: CPU seconds and bytes, with and without")
def cfl_cost(study: Study) -> Findings:
    """Small and larger clients; one distribution, label skew, and partial participation."""
    jobs = {
        f"{size} {shift} {participation:g} {seed}": partial(measure, size, shift, participation, seed, study.data_dir)
        for size in SIZES
        for shift, participation in SETTINGS
        for seed in study.seeds
    }
    found = study.cells(jobs)
    rows = []
    for size in SIZES:
        for shift, participation in SETTINGS:
            cells = [found[f"{size} {shift} {participation:g} {seed}"] for seed in study.seeds]
            where = f"{size}, {shift}, participation {participation:g}"
            rows.append(Row(where, "CPU seconds, with checks over without", [cell["cpu"] for cell in cells]))
            rows.append(Row(where, "bytes up, with checks over without", [cell["bytes"] for cell in cells]))
    return Findings(rows, [f"{ROUNDS} rounds, three epochs, lr 0.1; medians of three runs each, one worker."])
