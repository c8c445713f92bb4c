"""One run of the board, a tuning trial or a final run, as a few numbers."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from coterie import Federation, Result, run
from coterie.data import Defaults
from coterie.errors import CoterieError
from coterie.federation import on_validation
from coterie.runs import make_config, make_federation
from coterie_board.federations import BoardFederation
from coterie_board.methods import FINE_TUNED, Trial, build

SIZES = ("clients", "samples", "groups")
FINE_TUNING = 5
"""Epochs of the variant that fine-tunes."""
DIGITS = 5
"""Digits that are kept of a metric."""


@dataclass(frozen=True)
class Cell:
    """What is run: a method with a trial's options on a federation."""

    federation: BoardFederation
    method: str
    trial: Trial
    seed: int
    tuning: bool
    """Whether validation data takes the place of test data."""
    max_bytes: int | None
    data_dir: str | None


def compute(cell: Cell) -> dict[str, Any]:
    """Run a cell; where it fails, why."""
    start = time.process_time()
    try:
        found = _measures(cell, _run(cell))
    except CoterieError as problem:
        found = {"failed": " ".join(str(problem).split())}
    except Exception as problem:  # of one method, which must not stop the others
        found = {"failed": f"unexpected {type(problem).__name__}: {' '.join(str(problem).split())}"}
    return found | {"cpu": round(time.process_time() - start, 2)}


def _run(cell: Cell) -> Result:
    entry = cell.federation
    sizes = tuple(sorted((key, value) for key, value in entry.options.items() if key in SIZES))
    federation, defaults = clients_of(entry.name, sizes, cell.seed, cell.tuning, cell.data_dir)
    training = defaults.training
    options = {
        "model": defaults.model,
        "epochs": training.epochs,
        "batch_size": training.batch_size or "full",
        **{key: value for key, value in entry.options.items() if key not in (*SIZES, "lr")},
    }
    return run(
        build(cell.method, cell.trial.options, entry, cell.data_dir),
        federation,
        rounds=entry.rounds,
        evaluate_every=entry.rounds if entry.from_round is None else 1,  # the last models are evaluated in any case
        seed=cell.seed,
        lr=round(cell.trial.rate * entry.rate, 6),
        metrics=None if entry.metric == "accuracy" else entry.metric,
        personalise=FINE_TUNING if cell.trial.options == FINE_TUNED else 0,
        max_bytes=cell.max_bytes,
        workers=1,
        device="cpu",
        progress=False,
        **options,
    )


@lru_cache(maxsize=8)
def clients_of(
    scenario: str, sizes: tuple[tuple[str, int], ...], seed: int, tuning: bool, data_dir: str | None
) -> tuple[Federation, Defaults]:
    """The clients of a seed, the same for every method; for tuning with validation data in the place of test data."""
    federation, defaults = make_federation(
        make_config({"scenario": scenario, "seed": seed, "data_dir": data_dir, **dict(sizes)})
    )
    return (on_validation(federation, seed) if tuning else federation), defaults


def _measures(cell: Cell, result: Result) -> dict[str, Any]:
    """The federation's metric and what it cost."""
    entry, summary = cell.federation, result.summary
    spread = summary.metrics[entry.metric]
    if summary.personalised is not None and entry.metric == "accuracy" and entry.from_round is None:
        spread = summary.personalised
    value, worst = spread.mean, spread.worst10
    found: dict[str, Any] = {}
    if entry.from_round is not None:
        later = [record.accuracy for record in result.history if record.round >= entry.from_round]
        means = [one.mean for one in later if one.mean is not None]
        tenths = [one.worst10 for one in later if one.worst10 is not None]
        value, worst = (statistics.fmean(some) if some else None for some in (means, tenths))
        found["recovery"] = result.history.recovery().get(entry.from_round)
    if value is None:
        return {"failed": f"no client has a {entry.metric}"}
    found |= {
        "value": round(value, DIGITS),
        "worst": None if worst is None else round(worst, DIGITS),
        "loss": None if summary.loss.mean is None else round(summary.loss.mean, DIGITS),
        "ari": None if summary.ari is None else round(summary.ari, 3),
        "clusters": len(summary.clusters),
        "rounds": summary.rounds,
        "bytes": summary.bytes.total,
    }
    return found | ({"warnings": summary.warnings} if summary.warnings else {})
