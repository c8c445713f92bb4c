"""What a report knows of a run: everything its records say, put in the order a reader asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.report.clients import ReportedClients
from coterie.report.matrix import DrawnMatrix, arranged
from coterie.runs.folder import RunFolder
from coterie.runs.matrices import read_matrices
from coterie.runs.records import (
    Bytes,
    ClusterRecord,
    ExplanationRecord,
    RoundRecord,
    Summary,
    TreeNode,
    assignments,
    tree_of,
)
from coterie.runs.verdict import ClientScores, Judgement, find_plain, judge


@dataclass(frozen=True)
class Series:
    """One cluster over the rounds in which it existed."""

    cluster: int
    records: dict[int, ClusterRecord] = field(default_factory=dict)
    """By round."""

    def points(self, name: str) -> list[tuple[int, float]]:
        """The rounds in which a number of that name is known, and its values."""
        values = {t: getattr(record, name) for t, record in self.records.items()}
        return [(t, value) for t, value in values.items() if value is not None]


@dataclass(frozen=True)
class RunView:
    """A run as a report sees it; what is not known yet, or never will be, is None or empty."""

    path: Path
    config: dict[str, Any]
    history: list[RoundRecord]
    summary: Summary | None
    clients: ReportedClients
    tree: dict[int, TreeNode]
    """The clusters that splits made, by id; empty where nothing was split."""
    matrix: DrawnMatrix | None
    series: list[Series]
    explanation: ExplanationRecord | None = None
    """Why the clusters differ, where `coterie explain` was asked."""

    @property
    def method(self) -> str:
        """The method with its options."""
        return str(self.config.get("method", "?"))

    @property
    def finished(self) -> bool:
        """Is the run complete?"""
        return self.summary is not None

    def evaluated(self) -> list[RoundRecord]:
        """The rounds in which accuracy was measured."""
        return [record for record in self.history if record.accuracy.mean is not None]

    def split_rounds(self) -> list[int]:
        """The rounds in which a cluster was split, once for each."""
        return [record.round for record in self.history for _ in record.splits]

    def bytes(self) -> Bytes:
        """Bytes sent so far."""
        if self.summary is not None:
            return self.summary.bytes
        return Bytes(sum(r.bytes.up for r in self.history), sum(r.bytes.down for r in self.history))

    @property
    def scores(self) -> ClientScores:
        """What the clients are judged by."""
        return self.clients.scores


def read_run(path: Path, *, with_matrix: bool = True) -> RunView:
    """Read a run folder, finished or not; `with_matrix=False` leaves the matrix out."""
    folder = RunFolder(path)
    if not folder.has("config.json"):
        raise RunError(f"{path}: not a run folder (no config.json in it): give the folder that 'coterie run' made")
    config, history = folder.config(), folder.history()
    cluster_of = assignments(history)
    matrices = read_matrices(path / "matrices") if with_matrix else []
    tree = {node.id: node for node in tree_of(history)}
    matrix = arranged(matrices[0], cluster_of) if matrices else None
    series, explanation = cluster_series(history), folder.explanation()
    clients = ReportedClients.of(folder.each_client())
    return RunView(path, config, history, folder.summary(), clients, tree, matrix, series, explanation)


def cluster_series(history: Sequence[RoundRecord]) -> list[Series]:
    """Every cluster over the rounds, by id."""
    found: dict[int, Series] = {}
    for record in history:
        for cluster in record.clusters:
            found.setdefault(cluster.id, Series(cluster.id)).records[record.round] = cluster
    return [found[number] for number in sorted(found)]


def find_baselines(path: Path, config: Mapping[str, Any]) -> list[RunView]:
    """Runs of fedavg and local on the same clients that lie beside this one, in a comparison or not."""
    return [read_run(place, with_matrix=False) for place in find_plain(path, config)]


def judged(run: RunView, baselines: Sequence[RunView]) -> list[Judgement]:
    """The run against other runs and a constant answer."""
    others = {other.method: other.scores for other in baselines}
    return judge(run.scores, others, run.summary.train_samples if run.summary else None)


def given_baseline(run: RunView, path: Path) -> RunView:
    """The run that the user named as baseline; it must be finished and on the same clients."""
    other = read_run(path, with_matrix=False)
    if not other.finished:
        raise RunError(f"{path}: the baseline is not finished: resume it with 'coterie resume {path}'")
    if other.config.get("federation") != run.config.get("federation"):
        raise RunError(f"{path}: the baseline ran on other clients or data than {run.path}: give one on the same")
    return other
