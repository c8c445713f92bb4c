"""One run of the board, a tuning trial or a final run, as a few numbers."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

from coterie import Federation, Result, run
from coterie.data import Defaults
from coterie.errors import ConfigError, CoterieError
from coterie.federation import hold_out, on_validation
from coterie.runs import make_config, make_federation
from coterie_board.federations import BoardFederation
from coterie_board.methods import FINE_TUNED, build
from coterie_board.tuning import DIGITS, Trial

SIZES = ("clients", "samples", "groups")
FINE_TUNING = 5
"""Epochs of the variant that fine-tunes."""
VALIDATION = 0.2
"""Share of the training data that is held out for the plateau rule where the data comes without validation data."""


@dataclass(frozen=True)
class Cell:
    """What is run: a method with a trial's options on a federation."""

    federation: BoardFederation
    method: str
    trial: Trial
    seed: int
    tuning: bool
    """Whether validation data takes the place of test data."""
    data_dir: str | None


def compute(cell: Cell) -> dict[str, Any]:
    """Run a cell; where it fails, why."""
    start = time.process_time()
    try:
        found = _measured(cell)
    except CoterieError as problem:
        found = {"failed": " ".join(str(problem).split())}
    except Exception as problem:  # of one method, which must not stop the others
        found = {"failed": f"unexpected {type(problem).__name__}: {' '.join(str(problem).split())}"}
    return found | {"cpu": round(time.process_time() - start, 2)}


def _measured(cell: Cell) -> dict[str, Any]:
    entry = cell.federation
    sizes = tuple(sorted((key, value) for key, value in entry.options.items() if key in SIZES))
    federation, defaults = clients_of(entry.builds, sizes, cell.seed, cell.tuning, cell.data_dir)
    training = defaults.training
    options: dict[str, Any] = {
        "model": defaults.model,
        "epochs": training.epochs,
        "batch_size": training.batch_size or "full",
        **{key: value for key, value in entry.options.items() if key not in (*SIZES, "lr")},
    }
    stop: dict[str, Any] = {} if entry.patience is None else {"patience": entry.patience, "monitor": entry.metric}
    result = run(
        build(cell.method, cell.trial.options, entry, federation, cell.data_dir),
        federation,
        rounds=entry.rounds,
        seed=cell.seed,
        lr=cell.trial.rate(entry.rate),
        metrics=None if entry.metric == "accuracy" else entry.metric,
        personalise=FINE_TUNING if cell.trial.options == FINE_TUNED else 0,
        max_passes=entry.passes * len(federation),
        workers=1,
        device="cpu",
        progress=False,
        **stop,
        **options,
    )
    by_groups = {} if cell.tuning or entry.from_round else of_groups(result, federation, entry.metric)
    return _measures(entry, result) | by_groups


@lru_cache(maxsize=8)
def clients_of(
    scenario: str, sizes: tuple[tuple[str, int], ...], seed: int, tuning: bool, data_dir: str | None
) -> tuple[Federation, Defaults]:
    """The clients of a seed, the same for every method; for tuning with validation data in the place of test data."""
    federation, defaults = make_federation(
        make_config({"scenario": scenario, "seed": seed, "data_dir": data_dir, **dict(sizes)})
    )
    if not any(len(client.validation) for client in federation):
        federation = hold_out(federation, VALIDATION, seed)
    return (on_validation(federation, seed) if tuning else federation), defaults


def _measures(entry: BoardFederation, result: Result) -> dict[str, Any]:
    """The federation's metric and what it cost."""
    summary = result.summary
    spread = summary.metrics[entry.metric]
    if summary.personalised is not None and entry.metric == "accuracy" and entry.from_round is None:
        spread = summary.personalised
    value, worst, variance = spread.mean, spread.worst10, spread.variance
    found: dict[str, Any] = {}
    if entry.from_round is not None:
        later = [record.accuracy for record in result.history if record.round >= entry.from_round]
        value, worst, variance = (
            _mean([getattr(one, name) for one in later]) for name in ("mean", "worst10", "variance")
        )
        found["recovery"] = result.history.recovery().get(entry.from_round)
    if value is None:
        return {"failed": f"no client has a {entry.metric}"}
    found |= {
        "value": round(value, DIGITS),
        "worst": _rounded(worst),
        "variance": _rounded(variance),
        "loss": _rounded(summary.loss.mean),
        "ari": _rounded(summary.ari),
        "clusters": len(summary.clusters),
        "rounds": summary.rounds,
        "passes": _rounded(None if summary.passes is None else summary.passes / summary.clients),
        "bytes": summary.bytes.total,
        "stopped": "plateau" if summary.stopped and "was best in round" in summary.stopped else "budget",
    }
    return found | ({"warnings": summary.warnings} if summary.warnings else {})


def of_groups(result: Result, federation: Federation, metric: str) -> dict[str, Any]:
    """What clusters are worth by the hidden groups, where these are known.

    `concept`: the mean metric of the clients, each under the model that most clients of its group have. None where
    clients keep layers of their own, so that a cluster's model is not one for others. `conflict`: of all pairs of
    clients of other groups, the share that has one cluster.
    """
    if federation.groups is None or len(set(federation.groups)) < 2:
        return {}
    group_of = dict(zip(federation.ids, federation.groups, strict=True))
    cluster_of = {
        client: number
        for number, members in zip(result.summary.cluster_ids, result.clusters, strict=True)
        for client in members
    }
    apart = [(a, b) for a, b in combinations(cluster_of, 2) if group_of[a] != group_of[b]]
    conflict = statistics.fmean(cluster_of[a] == cluster_of[b] for a, b in apart)
    return {
        "concept": _rounded(_concept(result, federation, metric, group_of, cluster_of)),
        "conflict": round(conflict, DIGITS),
    }


def _concept(
    result: Result, federation: Federation, metric: str, group_of: dict[str, int], cluster_of: dict[str, int]
) -> float | None:
    if any(row.private or row.mixture for row in result.clients):
        return None
    members: dict[int, Counter[int]] = {}
    for client, group in group_of.items():
        members.setdefault(group, Counter())[cluster_of[client]] += 1
    model_of = {group: counts.most_common(1)[0][0] for group, counts in members.items()}
    found: list[float | None] = []
    for own in federation:
        if len(own.test):
            try:
                found.append(result.evaluate(own.test, cluster=model_of[group_of[own.id]], metrics=[metric])[metric])
            except ConfigError:  # the run has no model of that cluster
                return None
    return _mean(found)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None and value == value]
    return statistics.fmean(known) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
