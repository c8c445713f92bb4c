"""A drop-in strategy's files: a checkpoint from which a new run can resume, and the models, one file per cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from coterie.errors import RunError
from coterie.flower.arrays import Template
from coterie.flower.plain import PlainEngine
from coterie.flower.wire import layout_mark
from coterie.methods import Assignment, Method
from coterie.runs.assemble import describe_method
from coterie.runs.records import RoundRecord, from_json, model_file, to_json
from coterie.runs.store import Checkpoint, Store
from coterie.snapshot import load_snapshot, save_snapshot, saved, write_atomically


@saved
class StrategyCheckpoint:
    """What a strategy saves: the run's checkpoint and history, and what the nodes reported of themselves."""

    method: str
    layout: str
    run: Checkpoint
    history: list[Any]
    samples: dict[str, float]


class StrategyStore(Store):
    """The loop's store in one file; a file of another method or model is refused."""

    def __init__(self, path: Path, method: Method, engine: PlainEngine) -> None:
        self.path, self.engine = path, engine
        self.marks = (describe_method(method), layout_mark(engine.layout))
        self._history: list[RoundRecord] = []

    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint in the file, or None if there is no file."""
        if not self.path.exists():
            return None
        found = load_snapshot(self.path)
        if not isinstance(found, StrategyCheckpoint) or (found.method, found.layout) != self.marks:
            raise RunError(f"{self.path}: of another method or model: give the same ones, or another checkpoint")
        self.engine.known.update(found.samples)
        self._history = [from_json(RoundRecord, record, str(self.path)) for record in found.history]
        return found.run

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        history = [to_json(record) for record in self._history]
        save_snapshot(StrategyCheckpoint(*self.marks, checkpoint, history, dict(self.engine.known)), self.path)

    def rewind_history(self, to: int) -> list[RoundRecord]:
        self._history = [record for record in self._history if record.round <= to]
        return list(self._history)

    def append_history(self, record: RoundRecord) -> None:
        self._history.append(record)

    def amend_history(self, record: RoundRecord) -> None:
        self._history[-1] = record


def largest_cluster(assignment: Assignment) -> int:
    """The position of the cluster with the most members, the first of several."""
    sizes = [len(members) for members in assignment.members]
    return sizes.index(max(sizes))


def save_clusters(assignment: Assignment, template: Template, folder: Path) -> list[Path]:
    """Write the models as state dicts and `clusters.json`; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    served: dict[int, list[int]] = {number: [] for number in assignment.cluster_ids}
    models = dict(zip(assignment.cluster_ids, assignment.models, strict=True))
    for one in assignment.served():
        models[one.model_id] = one.model
        served.setdefault(one.model_id, []).append(int(one.client))
    files = []
    for number, model in models.items():
        files.append(folder / f"{model_file(number)}.pt")
        torch.save(template.record(model).to_torch_state_dict(), files[-1])
    index = {
        "final_model": assignment.cluster_ids[largest_cluster(assignment)],
        "models": [{"id": n, "file": f"{model_file(n)}.pt", "nodes": sorted(served[n])} for n in models],
    }
    files.append(folder / "clusters.json")
    write_atomically(files[-1], (json.dumps(index, indent=2) + "\n").encode())
    return files
