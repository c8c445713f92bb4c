"""A drop-in strategy's checkpoint: one file after every round, from which a new run can resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.flower.plain import PlainEngine
from coterie.flower.wire import layout_mark
from coterie.methods import Method
from coterie.runs.assemble import describe_method
from coterie.runs.records import RoundRecord, from_json, to_json
from coterie.runs.store import Checkpoint, Store
from coterie.snapshot import load_snapshot, save_snapshot, saved


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
