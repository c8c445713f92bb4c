"""What a report knows of a run: everything its folder tells, put in the order a reader asks for it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.methods.cfl_state import State as TreeState
from coterie.methods.graph_averaging import State as GraphState
from coterie.methods.tree import as_table
from coterie.report.matrix import Matrix, from_relatives, from_tree
from coterie.runs.folder import RunFolder

KEEPS_MATRIX = {"cfl", "flt", "pca-kmeans-hc"}
"""Methods whose checkpoint is opened: others keep nothing there to show, and theirs may be large."""


@dataclass(frozen=True)
class Series:
    """One cluster's course: a value of each measure for every round in which it existed."""

    cluster: int
    rounds: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    accuracy: list[float | None] = field(default_factory=list)
    mean_norm: list[float | None] = field(default_factory=list)
    max_norm: list[float | None] = field(default_factory=list)


@dataclass(frozen=True)
class RunView:
    """A run as a report sees it; what is not known yet, or never will be, is None or empty."""

    path: Path
    config: dict[str, Any]
    history: list[dict[str, Any]]
    summary: dict[str, Any] | None
    clients: list[dict[str, Any]]
    tree: list[dict[str, Any]]
    """CFL's nodes as rows by id; empty for other methods."""
    fallback: dict[str, int]
    matrix: Matrix | None
    series: list[Series]

    @property
    def method(self) -> str:
        """The method with its options."""
        return str(self.config.get("method", "?"))

    @property
    def finished(self) -> bool:
        """Is the run complete?"""
        return self.summary is not None

    def evaluated(self) -> list[dict[str, Any]]:
        """The rounds in which accuracy was measured."""
        return [record for record in self.history if record.get("accuracy", {}).get("mean") is not None]

    def splits(self) -> list[tuple[int, dict[str, Any]]]:
        """The rounds in which a cluster was split, with the event."""
        return [(r["round"], event) for r in self.history for event in r["events"] if event["kind"] == "split"]

    def bytes(self) -> dict[str, int]:
        """Bytes sent so far, up and down."""
        if self.summary is not None:
            return dict(self.summary["bytes"])
        return {way: sum(record["bytes"][way] for record in self.history) for way in ("up", "down")}

    def accuracies(self) -> dict[str, float]:
        """Final accuracy by client, of those that have one."""
        return {row["client"]: row["accuracy"] for row in self.clients if row["accuracy"] is not None}


def read_run(path: Path, *, with_state: bool = True) -> RunView:
    """Read a run folder, finished or not; `with_state=False` leaves tree and matrix out."""
    folder = RunFolder(path)
    if not folder.has("config.json"):
        raise RunError(f"{path}: not a run folder (no config.json in it): give the folder that 'coterie run' made")
    config = folder.config()
    history = folder.history()
    summary = folder.read_json("summary.json") if folder.has("summary.json") else None
    clients = folder.read_json("clients.json") if folder.has("clients.json") else []
    name = str(config.get("method", "")).partition(":")[0]
    checkpoint = folder.checkpoint() if with_state and name in KEEPS_MATRIX else None
    state = checkpoint.state if checkpoint else None
    tree: list[dict[str, Any]] = []
    fallback: dict[str, int] = {}
    matrix = None
    if isinstance(state, TreeState):
        tree, matrix, fallback = as_table(state.tree), from_tree(state.tree), dict(state.fallback)
    elif isinstance(state, GraphState):
        clusters = summary["clusters"] if summary else []
        matrix = from_relatives(state, clusters, str(config["method"]))
    return RunView(path, config, history, summary, clients, tree, fallback, matrix, course_of_clusters(history))


def course_of_clusters(history: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Every cluster's course by its id.

    CFL numbers clusters by their nodes: a split retires one and brings the next two numbers, and the history lists
    the present ones in order of number. Elsewhere a cluster's number is its place in the list.
    """
    present, following = [0], itertools.count(1)
    found: dict[int, Series] = {}
    follows_tree = any(_retired(event) is not None for record in history for event in record["events"])
    for record in history:
        for event in record["events"]:
            if (retired := _retired(event)) is not None:
                children = [next(following), next(following)]
                present = sorted([*(c for c in present if c != retired), *children])
        clusters = record["clusters"]
        # A cluster whose members all left is no longer listed; from there on numbers cannot be told.
        numbers = present if follows_tree and len(present) == len(clusters) else range(len(clusters))
        for number, cluster in zip(numbers, clusters, strict=True):
            series = found.setdefault(number, Series(number))
            series.rounds.append(record["round"])
            series.members.append(cluster["members"])
            series.accuracy.append(cluster.get("accuracy"))
            series.mean_norm.append(cluster.get("mean_norm"))
            series.max_norm.append(cluster.get("max_norm"))
    return [found[number] for number in sorted(found)]


def _retired(event: Mapping[str, Any]) -> int | None:
    """The number of the cluster that an event says was split, or None."""
    return event["details"].get("cluster") if event["kind"] == "split" else None


@dataclass(frozen=True)
class Gains:
    """What each client has over a baseline, in accuracy, worst first."""

    baseline: str
    by_client: list[tuple[str, float]]

    @property
    def values(self) -> list[float]:
        """The gains, worst first."""
        return [gain for _, gain in self.by_client]

    @property
    def mean(self) -> float:
        """The mean gain."""
        return sum(self.values) / len(self.by_client)


def gains_over(run: RunView, baseline: RunView) -> Gains | None:
    """Accuracy of each client minus its accuracy in the baseline, or None where nothing can be compared."""
    ours, theirs = run.accuracies(), baseline.accuracies()
    pairs = [(client, ours[client] - theirs[client]) for client in ours if client in theirs]
    return Gains(baseline.method, sorted(pairs, key=lambda pair: pair[1])) if pairs else None


def find_baselines(path: Path, config: Mapping[str, Any]) -> list[RunView]:
    """Runs of fedavg and local on the same clients that lie beside this one, in a comparison or not."""
    found = []
    for name in ("fedavg", "local"):
        for place in (path.parent / name, path.parent.parent / name / path.name):
            if place.resolve() != path.resolve() and (place / "summary.json").exists():
                other = read_run(place, with_state=False)
                if other.config.get("federation") == config.get("federation"):
                    found.append(other)
                    break
    return found


def given_baseline(run: RunView, path: Path) -> RunView:
    """The run that the user named as baseline; it must be finished and on the same clients."""
    other = read_run(path, with_state=False)
    if not other.finished:
        raise RunError(f"{path}: the baseline is not finished: resume it with 'coterie resume {path}'")
    if other.config.get("federation") != run.config.get("federation"):
        raise RunError(f"{path}: the baseline ran on other clients or data than {run.path}: give one on the same")
    return other
