"""The ranking of compared runs: for each method, means over the seeds of what the runs' own summaries say."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.runs import RunFolder
from coterie.runs.records import RoundRecord, Summary
from coterie_studies.budgets import spent_by_all
from coterie_studies.differences import Test, find_baseline, paired_differences
from coterie_views.verdict import ACCURACY, LEVEL, LOSS, Measure, judged_by, shared_training, standard_error

SHARE_OF_BEST = 0.9
"""Speed is the number of exchanges until a run reaches this share of the best method's final mean accuracy."""


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
    """The method with the highest mean accuracy, or with the lowest loss where there is no accuracy."""
    target: float | None
    spent: dict[str, dict[str, Any]]
    """For each of rounds, bytes and passes the least and most that a run took, and whether that was equal."""

    def table(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The leaderboard as plain data."""
        return {
            "options": dict(options),
            "seeds": self.seeds,
            "best": self.best,
            "target": self.target,
            "spent": self.spent,
            "rows": self.rows,
        }


def rank(trials: Sequence[ComparedRun], failures: Mapping[tuple[str, int], str], place: Path) -> Leaderboard:
    """Read the finished runs and put the methods side by side, in the order in which they were named."""
    found = {trial: RunFolder(trial.folder).summary() for trial in trials}
    summaries = {trial: summary for trial, summary in found.items() if summary is not None}
    of_method: dict[str, list[ComparedRun]] = {}
    for trial in trials:
        of_method.setdefault(trial.method, []).append(trial)
    rows = [_row(method, mine, summaries, failures, place) for method, mine in of_method.items()]
    best, target = _best_of(rows)
    for row in rows:
        finished = [trial for trial in of_method[row["method"]] if trial in summaries]
        row["exchanges_to_target"] = [exchanges_to(RunFolder(trial.folder).history(), target) for trial in finished]
    spent = spent_by_all([(trial.seed, summary) for trial, summary in summaries.items()])
    return Leaderboard(rows, sorted({trial.seed for trial in trials}), best, target, spent)


def _row(
    method: str,
    trials: Sequence[ComparedRun],
    summaries: Mapping[ComparedRun, Summary],
    failures: Mapping[tuple[str, int], str],
    place: Path,
) -> dict[str, Any]:
    """A method's runs: where they are, which finished, which failed, and what they measured."""
    finished = [trial for trial in trials if trial in summaries]
    failed = [trial.seed for trial in trials if (method, trial.seed) in failures]
    return {
        "method": method,
        "folders": {str(trial.seed): trial.folder.relative_to(place).as_posix() for trial in trials},
        "finished": [trial.seed for trial in finished],
        "failures": {str(seed): failures[method, seed] for seed in failed},
        **_measures([summaries[trial] for trial in finished]),
    }


def _best_of(rows: Sequence[Mapping[str, Any]]) -> tuple[str | None, float | None]:
    """The best method, by accuracy where any has one, else by loss; and the accuracy that counts as reached."""
    accuracies = {row["method"]: row["accuracy"]["mean"] for row in rows if row["accuracy"] is not None}
    losses = {row["method"]: row["loss"]["mean"] for row in rows if row["loss"] is not None}
    if accuracies:
        best = max(accuracies, key=lambda method: accuracies[method])
        return best, SHARE_OF_BEST * accuracies[best]
    return (min(losses, key=lambda method: losses[method]) if losses else None), None


def measure_of(table: Mapping[str, Any]) -> Measure:
    """What the methods of a comparison are judged by."""
    return ACCURACY if any(row["accuracy"] is not None for row in table["rows"]) else LOSS


def tested(table: dict[str, Any], place: Path, baseline: str | None, test: Test) -> dict[str, Any]:
    """The table with every method's paired difference against the baseline (None: the best), and by which test."""
    finished = [row for row in table["rows"] if row["finished"]]
    named = baseline is not None
    against = find_baseline(baseline, [row["method"] for row in table["rows"]]) if baseline else table["best"]
    measure = measure_of(table)
    metric = measure.name
    scores = {
        row["method"]: {
            seed: {
                client.client: value
                for client in RunFolder(place / row["folders"][str(seed)]).clients()
                if (value := measure.paired(client.metrics.get(metric))) is not None
            }
            for seed in row["finished"]
        }
        for row in finished
    }
    shared = _shared_training(place, finished)
    found = paired_differences(scores, against, metric, test, shared) if against in scores else []
    to_best = paired_differences(scores, table["best"], metric, test, shared) if table["best"] in scores else []
    return table | {
        "baseline": {"method": against, "named": named},
        "test": test,
        "differences": [asdict(one) for one in found],
        "ties": [one.method for one in to_best if one.p_holm is None or one.p_holm > LEVEL],
    }


def _shared_training(place: Path, finished: Sequence[Mapping[str, Any]]) -> float:
    """How much of the clients' results the common training is, from a run; see `coterie_views.verdict`."""
    if not finished:
        return 0.0
    folder = RunFolder(place / finished[0]["folders"][str(finished[0]["finished"][0])])
    summary = folder.summary()
    samples = {row.client: row.test_samples for row in folder.each_client()}
    return shared_training(samples, summary.train_samples if summary else None)


def exchanges_to(history: Iterable[RoundRecord], target: float | None) -> int | None:
    """The exchanges with clients, from the first message on, until the mean accuracy is at least the target, or None.

    Seeding before the first round and checks between rounds count. A record from before they were counted has one.
    """
    if target is None:
        return None
    made = 0
    for record in history:
        made += 1 if record.exchanges is None else record.exchanges
        reached = record.accuracy.mean
        if reached is not None and reached >= target:
            return made
    return None


def _measures(summaries: Sequence[Summary]) -> dict[str, Any]:
    """What is compared, each with mean, deviation, standard error and values; None where no run knows it."""
    others = dict.fromkeys(name for s in summaries for name in s.metrics if name not in ("accuracy", "loss"))
    return {
        "accuracy": over_seeds(s.accuracy.mean for s in summaries),
        "worst10": over_seeds(judged_by(s).of(s).worst10 for s in summaries),
        "variance": over_seeds(s.accuracy.variance for s in summaries),
        "loss": over_seeds(s.loss.mean for s in summaries),
        "clusters": over_seeds(len(s.clusters) for s in summaries),
        "ari": over_seeds(s.ari for s in summaries),
        "bytes": over_seeds(s.bytes.total for s in summaries),
        "passes": over_seeds(s.passes for s in summaries),
        "seconds": over_seeds(s.seconds for s in summaries),
        "metrics": {name: over_seeds(s.metrics[name].mean for s in summaries if name in s.metrics) for name in others},
    }


def over_seeds(values: Iterable[float | None]) -> dict[str, Any] | None:
    """Mean, sample standard deviation (None for one value) and standard error of the known values, or None."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    several = len(known) > 1
    return {
        "mean": statistics.fmean(known),
        "std": statistics.stdev(known) if several else None,
        "sem": standard_error(known) if several else None,
        "values": known,
    }
