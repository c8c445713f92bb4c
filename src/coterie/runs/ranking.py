"""The ranking of compared runs: for each method, means over the seeds of what the runs' own summaries say."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.runs.folder import RunFolder
from coterie.runs.records import RoundRecord, Summary

SHARE_OF_BEST = 0.9
"""Speed is the number of rounds until a run reaches this share of the best method's final mean accuracy."""


@dataclass(frozen=True)
class ComparedRun:
    """One method with one seed, and its run folder."""

    method: str
    seed: int
    folder: Path


@dataclass(frozen=True)
class Leaderboard:
    """Compared runs: a row per method, and the accuracy that counts as reached."""

    rows: list[dict[str, Any]]
    seeds: list[int]
    best: str | None
    target: float | None

    def table(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The leaderboard as plain data."""
        return {
            "options": dict(options),
            "seeds": self.seeds,
            "best": self.best,
            "target": self.target,
            "rows": self.rows,
        }


def rank(trials: Sequence[ComparedRun], failures: Mapping[tuple[str, int], str], place: Path) -> Leaderboard:
    """Read the finished runs and put the methods side by side, in the order in which they were named."""
    summaries = {}
    for trial in trials:
        found = RunFolder(trial.folder).summary()
        if found is not None:
            summaries[trial] = found
    methods = list(dict.fromkeys(trial.method for trial in trials))
    rows = []
    for method in methods:
        mine = [trial for trial in trials if trial.method == method]
        rows.append(
            {
                "method": method,
                "folders": {str(trial.seed): trial.folder.relative_to(place).as_posix() for trial in mine},
                "finished": [trial.seed for trial in mine if trial in summaries],
                "failures": {
                    str(trial.seed): failures[key] for trial in mine if (key := (method, trial.seed)) in failures
                },
                **_measures([summaries[trial] for trial in mine if trial in summaries]),
            }
        )
    known = {row["method"]: row["accuracy"]["mean"] for row in rows if row["accuracy"] is not None}
    best = max(known, key=lambda method: known[method]) if known else None
    target = SHARE_OF_BEST * known[best] if best is not None else None
    for row in rows:
        mine = [trial for trial in trials if trial.method == row["method"] and trial in summaries]
        row["rounds_to_target"] = [rounds_to(RunFolder(trial.folder).history(), target) for trial in mine]
    return Leaderboard(rows, sorted({trial.seed for trial in trials}), best, target)


def rounds_to(history: Iterable[RoundRecord], target: float | None) -> int | None:
    """The first round whose mean accuracy is at least the target, or None."""
    if target is None:
        return None
    for record in history:
        reached = record.accuracy.mean
        if reached is not None and reached >= target:
            return record.round
    return None


def _measures(summaries: Sequence[Summary]) -> dict[str, Any]:
    """What is compared, each with mean, standard deviation and values; None where no run knows it."""
    return {
        "accuracy": over_seeds(s.accuracy.mean for s in summaries),
        "worst10": over_seeds(s.accuracy.worst10 for s in summaries),
        "variance": over_seeds(s.accuracy.variance for s in summaries),
        "loss": over_seeds(s.loss.mean for s in summaries),
        "clusters": over_seeds(len(s.clusters) for s in summaries),
        "ari": over_seeds(s.ari for s in summaries),
        "bytes": over_seeds(s.bytes.total for s in summaries),
        "seconds": over_seeds(s.seconds for s in summaries),
    }


def over_seeds(values: Iterable[float | None]) -> dict[str, Any] | None:
    """Mean and standard deviation (population) of the known values, or None when there are none."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    return {"mean": statistics.fmean(known), "std": statistics.pstdev(known), "values": known}
