"""A federation's rows in numbers: means with intervals, paired differences, and who failed there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie_board.board import Board
from coterie_board.federations import BoardFederation
from coterie_board.methods import REFERENCE, takes_part
from coterie_studies import holm, p_value
from coterie_views.verdict import interval

ALPHA = 0.05
DIVERGED = 10
"""An error so many times the reference's is no result of training."""


@dataclass(frozen=True)
class Standing:
    """A method on a federation."""

    method: str
    failed: str | None
    """Why there is no value."""
    mean: float | None
    half: float | None
    """Half the width of the 95 % interval of the mean over seeds, by Student's t; None with one seed."""
    worst: float | None
    """The tenth of the clients that is served worst."""
    variance: float | None
    """Of the metric over the clients."""
    ari: float | None
    concept: float | None
    """The metric where each client has the model that most clients of its hidden group have."""
    conflict: float | None
    """Of all pairs of clients of other hidden groups, the share in one cluster."""
    clusters: float | None
    passes: float | None
    """Of a client over its data, on average."""
    megabytes: float | None
    cpu: float | None
    """CPU seconds of a final run."""
    rounds: float | None
    choice: str
    """What the tuning chose."""
    recovery: str | None = None
    """Where data changes: rounds until accuracy was back within two points, by seed."""
    gain: float | None = None
    """How much better than the reference, paired by seed; positive is better whatever the metric."""
    gain_half: float | None = None
    p: float | None = None
    p_holm: float | None = None
    """After Holm's correction for all methods on this federation."""
    rank: float = math.nan


def standings(board: Board, entry: BoardFederation) -> list[Standing]:
    """Every method on a federation, in the order of the rows."""
    rows = [row for row in board.methods if takes_part(row, entry) and row in board.results.get(entry.name, {})]
    found = {row: board.results[entry.name][row] for row in rows}
    failures = {row: failure(board, entry, row) for row in rows}
    values = {row: None if failures[row] else seed_values(found[row]) for row in rows}
    reference = values.get(REFERENCE) or {}
    sign = 1 if entry.higher_is_better else -1
    gains = {
        row: [sign * (own[seed] - reference[seed]) for seed in own if seed in reference]
        for row, own in values.items()
        if own is not None and row != REFERENCE
    }
    tests = {row: p_value(gain) for row, gain in gains.items()}
    adjusted = dict(zip(tests, holm(list(tests.values())), strict=True))
    means = {row: None if own is None else statistics.fmean(own.values()) for row, own in values.items()}
    ranks = dict(zip(rows, rank([None if (m := means[row]) is None else sign * m for row in rows]), strict=True))
    return [
        replace(
            _standing(row, found[row], values[row]),
            failed=failures[row],
            rank=ranks[row],
            gain=statistics.fmean(gains[row]) if gains.get(row) else None,
            gain_half=half_width(gains[row]) if gains.get(row) else None,
            p=tests.get(row),
            p_holm=adjusted.get(row),
        )
        for row in rows
    ]


def _standing(row: str, found: Mapping[str, Any], values: Mapping[int, float] | None) -> Standing:
    """What the final runs say of a method by itself."""
    runs = [run for run in found["runs"] if "failed" not in run]
    trial = None if found["choice"] is None else found["trials"][found["choice"]]
    return Standing(
        method=row,
        failed=None,
        mean=statistics.fmean(values.values()) if values else None,
        half=half_width(list(values.values())) if values else None,
        worst=_mean(run["worst"] for run in runs),
        variance=_mean(run["variance"] for run in runs),
        ari=_mean(run["ari"] for run in runs),
        concept=_mean(run.get("concept") for run in runs),
        conflict=_mean(run.get("conflict") for run in runs),
        passes=_mean(run["passes"] for run in runs),
        clusters=_mean(run["clusters"] for run in runs),
        megabytes=None if (sent := _mean(run["bytes"] for run in runs)) is None else sent / 1e6,
        cpu=_mean(run["cpu"] for run in runs),
        rounds=_mean(run["rounds"] for run in runs),
        choice="" if trial is None else ", ".join(text for text in (trial["options"], f"lr={trial['lr']:g}") if text),
        recovery=_recoveries(runs),
    )


def seed_values(found: Mapping[str, Any]) -> dict[int, float]:
    """The metric by seed, of runs that did not fail."""
    return {run["seed"]: run["value"] for run in found["runs"] if "failed" not in run}


def failure(board: Board, entry: BoardFederation, row: str) -> str | None:
    """Why a method has no result: all its trials failed, or one of its final runs did, or diverged."""
    found = board.results[entry.name][row]
    if found["choice"] is None:
        return str(found["trials"][0]["failed"])
    usual = seed_values(board.results[entry.name].get(REFERENCE, {"runs": []}))
    for run in found["runs"]:
        if "failed" in run:
            return f"seed {run['seed']}: {run['failed']}"
        limit = math.inf if entry.higher_is_better else DIVERGED * usual.get(run["seed"], math.inf)
        if run["value"] > limit:
            lr = found["trials"][found["choice"]]["lr"]
            return (
                f"seed {run['seed']}: training diverged ({entry.metric} {run['value']:.3g}) with the chosen lr={lr:g}"
            )
    return None


def half_width(sample: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean; None for one value."""
    low, high = interval(sample) or (None, None)
    return None if low is None or high is None else (high - low) / 2


def _mean(values: Any) -> float | None:
    known = [float(value) for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _recoveries(runs: Sequence[Mapping[str, Any]]) -> str | None:
    if not runs or "recovery" not in runs[0]:
        return None
    return ", ".join("never" if run["recovery"] is None else str(run["recovery"]) for run in runs)


def rank(values: Sequence[float | None]) -> list[float]:
    """Ranks from 1, the highest value first; equal values share their mean rank, and those without one are last."""
    from scipy.stats import rankdata

    ranks: list[float] = rankdata([-value if value is not None else math.inf for value in values]).tolist()
    return ranks
