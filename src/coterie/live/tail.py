"""Follow a history file as it grows: only new lines are read, and a file that was replaced is read again."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from coterie.live.growth import Growth
from coterie.runs.metrics import plain

MOST_CLUSTERS = 64
"""Rounds with more clusters than this are told by their number only, as the run's own record does."""
MOST_RECORDS = 1500
"""A longer history is thinned when a page asks for all of it; what it adds later comes in full."""

_EPOCHS = itertools.count(int(time.time() * 1000))
"""Numbers that no page can have from before, even from another server."""


class HistoryTail:
    """The rounds of a `history.jsonl` in the page's compact form.

    `epoch` changes whenever rounds that were shown are no longer true (a resumed run goes back to its checkpoint, or
    another run took the folder), so that a page knows when to forget what it has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epoch = next(_EPOCHS)
        self._reset()

    def _reset(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.growth = Growth()
        self._offset = 0
        self._inode: int | None = None

    def restart(self) -> None:
        """Forget everything: the file is another one now."""
        if self.records:
            self.epoch = next(_EPOCHS)
        self._reset()

    def poll(self) -> bool:
        """Read what was added since the last time; was there anything, or was something taken back?"""
        before = (self.epoch, len(self.records))
        try:
            with open(self.path, "rb") as file:
                self._read(file)
        except OSError:
            self.restart()
        return before != (self.epoch, len(self.records))

    def _read(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        if self._inode is not None and (status.st_ino != self._inode or status.st_size < self._offset):
            self.restart()
        self._inode = status.st_ino
        if status.st_size == self._offset:
            return
        file.seek(self._offset)
        # What follows the last line break is a line that is still being written: it waits for its end.
        for line in file.read().split(b"\n")[:-1]:
            if not self._take(line):
                break
            self._offset += len(line) + 1

    def _take(self, line: bytes) -> bool:
        """Add a line; False for one that is damaged or out of order, which only a new file can repair."""
        try:
            record = json.loads(line)
        except ValueError:
            return False
        if not isinstance(record, dict) or record.get("round") != len(self.records) + 1:
            return False
        self.records.append(self._compact(plain(record)))
        return True

    def _compact(self, record: dict[str, Any]) -> dict[str, Any]:
        clusters = [cluster for cluster in _list(record.get("clusters")) if isinstance(cluster, dict)]
        events = [event for event in _list(record.get("events")) if isinstance(event, dict)]
        ids = self.growth.add(record["round"], clusters, events)
        accuracy, sent = _dict(record.get("accuracy")), _dict(record.get("bytes"))
        rows = [
            {"id": i, **{key: cluster.get(key) for key in ("members", "accuracy", "loss", "mean_norm", "max_norm")}}
            for i, cluster in zip(ids, clusters, strict=True)
        ]
        return {
            "round": record["round"],
            "accuracy": accuracy.get("mean"),
            "worst": accuracy.get("worst10"),
            "loss": _dict(record.get("loss")).get("mean"),
            "seconds": record.get("seconds"),
            "up": sent.get("up"),
            "down": sent.get("down"),
            "count": len(clusters),
            "clusters": rows if len(rows) <= MOST_CLUSTERS else [],
            "events": [{"kind": str(event.get("kind")), "text": str(event.get("text"))} for event in events],
        }


def thinned(records: Sequence[dict[str, Any]], most: int = MOST_RECORDS) -> list[dict[str, Any]]:
    """About `most` of the records: evenly spaced, the last, and every one in which a cluster was split."""
    if len(records) <= most:
        return list(records)
    step = -(-len(records) // most)
    last = len(records) - 1
    return [
        record
        for i, record in enumerate(records)
        if i % step == 0 or i == last or any(event["kind"] == "split" for event in record["events"])
    ]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
