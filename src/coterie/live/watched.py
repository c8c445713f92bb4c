"""One run folder as the page sees it: what it is, how far it has come, and what changed since the last look."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.live.tail import HistoryTail, thinned
from coterie.runs.folder import RunFolder
from coterie.runs.records import Summary, parse_json, to_json

FILES = ("config.json", "history.jsonl", "summary.json", "clients.json")
PATIENCE = 15.0
"""Seconds without a sign of life after which a run is called stopped, where its lock cannot be seen."""
CONFIG_KEYS = ("method", "scenario", "data", "model", "rounds", "seed", "participation", "lr", "epochs", "batch_size")


class WatchedRun:
    """A run folder that is only ever read."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.tail = HistoryTail(path / "history.jsonl")
        self.config: dict[str, Any] = {}
        self.summary: Summary | None = None
        self.clients_version = 0
        self.status = "stopped"
        self._seen: dict[str, tuple[int, int, int] | None] = {}
        self._was_locked = False

    def poll(self, locks: frozenset[int] | None) -> bool:
        """Look again; did anything change that a page shows? `locks` are the inodes of locked files, if known."""
        stamps = {name: _stamp(self.path / name) for name in FILES}
        changed = {name for name in FILES if stamps[name] != self._seen.get(name)}
        self._seen = stamps
        if "config.json" in changed:
            self.config = _read_table(self.path / "config.json") or {}
            self.tail.restart()
        if "summary.json" in changed:
            self.summary = self._read_summary()
        if "history.jsonl" in changed or "config.json" in changed:
            self.tail.poll()
        if changed & {"clients.json", "summary.json", "history.jsonl"}:
            self.clients_version += 1
        status = self._status(locks)
        moved = status != self.status
        self.status = status
        return bool(changed) or moved

    def _read_summary(self) -> Summary | None:
        try:
            return RunFolder(self.path).summary()
        except RunError:
            return None  # still being written, or damaged: the run counts as unfinished

    def _status(self, locks: frozenset[int] | None) -> str:
        if self.summary is not None:
            return "finished"
        lock = _stamp(self.path)
        if locks is not None and lock is not None and lock[0] in locks:
            self._was_locked = True
            return "running"
        if self._was_locked and locks is not None:
            return "stopped"
        latest = max((stamp[1] for stamp in self._seen.values() if stamp), default=0) / 1e9
        spent = self.tail.records[-1]["seconds"] if self.tail.records else None
        quiet = max(PATIENCE, 4 * spent) if isinstance(spent, int | float) else PATIENCE
        return "running" if time.time() - latest < quiet else "stopped"

    def brief(self) -> dict[str, Any]:
        """The run's line in the list of runs."""
        last = self.tail.records[-1] if self.tail.records else {}
        accuracy = next((r["accuracy"] for r in reversed(self.tail.records) if r["accuracy"] is not None), None)
        if self.summary is not None:
            accuracy = self.summary.accuracy.mean
        return {
            "id": self.name,
            "status": self.status,
            **{key: self.config.get(key) for key in CONFIG_KEYS},
            "round": last.get("round", 0),
            "accuracy": accuracy,
            "loss": last.get("loss"),
            "clusters": last.get("count"),
            "epoch": self.tail.epoch,
            "clients_version": self.clients_version,
        }

    def detail(self, epoch: int | None, start: int) -> dict[str, Any]:
        """All there is to draw; of the history only what follows `start` rounds, if the page's epoch still holds."""
        same = epoch == self.tail.epoch and 0 <= start <= len(self.tail.records)
        first = start if same else 0
        summary = None
        if self.summary is not None:
            found = to_json(self.summary)
            summary = {key: found[key] for key in ("ari", "bytes", "seconds", "clients")} | found["metrics"]
        return self.brief() | {
            "from": first,
            "records": thinned(self.tail.records[first:]),
            "total": len(self.tail.records),
            "tree": self.tail.growth.table(),
            "summary": summary,
        }

    def clients(self) -> dict[str, Any]:
        """The clients' rows: with metrics once the run is complete, before that their clusters only."""
        rows = self._final_rows()
        if rows is None:
            places = self.tail.growth.cluster_of
            rows = [{"client": client, "cluster": cluster} for client, cluster in places.items()]
        return {"version": self.clients_version, "rows": rows}

    def _final_rows(self) -> list[dict[str, Any]] | None:
        if self.summary is None:
            return None
        try:
            found = RunFolder(self.path).clients()
        except RunError:
            return None
        return [
            {"client": row.client, "cluster": row.cluster, "test_samples": row.test_samples, **row.metrics}
            | ({} if row.personalised is None else {"personalised": row.personalised})
            for row in found
        ]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Inode, time and size: together they tell whether a file is still the one that was read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read_table(path: Path) -> dict[str, Any] | None:
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
