"""What a report knows of a run: everything its records say, put in the order a reader asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.errors import RunError
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
from coterie_views.report.clients import ReportedClients
from coterie_views.report.matrix import DrawnMatrix, arranged
from coterie_views.verdict import ClientScores, Judgement, judge


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

    @cached_property
    def matrix(self) -> DrawnMatrix | None:
        """The first matrix that the method clustered by, if it kept one."""
        matrices = read_matrices(self.path / "matrices")
        return arranged(matrices[0], assignments(self.history)) if matrices else None

    @property
    def scores(self) -> ClientScores:
        """What the clients are judged by."""
        return self.clients.scores


def read_run(path: Path) -> RunView:
    """Read a run folder, finished or not; the matrix is read when it is asked for."""
    folder = RunFolder(path)
    if not folder.has("config.json"):
        raise RunError(f"{path}: not a run folder (no config.json in it): give the folder that 'coterie run' made")
    config, history = folder.config(), folder.history()
    tree = {node.id: node for node in tree_of(history)}
    series, explanation = cluster_series(history), folder.explanation()
    clients = ReportedClients.of(folder.each_client())
    return RunView(path, config, history, folder.summary(), clients, tree, series, explanation)


def cluster_series(history: Sequence[RoundRecord]) -> list[Series]:
    """Every cluster over the rounds, by id."""
    found: dict[int, Series] = {}
    for record in history:
        for cluster in record.clusters:
            found.setdefault(cluster.id, Series(cluster.id)).records[record.round] = cluster
    return [found[number] for number in sorted(found)]


def judged(run: RunView, baselines: Sequence[RunView]) -> list[Judgement]:
    """The run against other runs and a constant answer."""
    others = {other.method: other.scores for other in baselines}
    return judge(run.scores, others, run.summary.train_samples if run.summary else None)


def given_baseline(run: RunView, path: Path) -> RunView:
    """The run that the user named as baseline; it must be finished and on the same clients."""
    other = read_run(path)
    if not other.finished:
        raise RunError(f"{path}: the baseline is not finished: resume it with 'coterie resume {path}'")
    if other.config.get("federation") != run.config.get("federation"):
        raise RunError(f"{path}: the baseline ran on other clients or data than {run.path}: give one on the same")
    return other
