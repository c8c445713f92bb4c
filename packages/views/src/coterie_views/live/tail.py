"""Follow a history file as it grows: only new lines are read, and a file that was replaced is read again."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from coterie.errors import RunError
from coterie.runs.records import MOST_CLUSTERS, ClusterRecord, Growth, RoundRecord, TreeNode, from_json, parse_json
from coterie.runs.rows import CHECKSUM
from coterie_views.live.files import open_plain

MOST_RECORDS = 1500
"""A longer history is thinned when a page asks for all of it; what it adds later comes in full."""

_EPOCHS = itertools.count(int(time.time() * 1000))
"""Numbers that no page can have from before, even from another server."""


class ShownGrowth(Growth):
    """The tree of splits with every cluster's last size and accuracy."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, ClusterRecord] = {}
        self.accuracy: dict[int, float] = {}

    def add(self, record: RoundRecord) -> None:
        """Take one round in."""
        super().add(record)
        for cluster in record.clusters:
            self.last[cluster.id] = cluster
            if cluster.accuracy is not None:
                self.accuracy[cluster.id] = cluster.accuracy

    def table(self) -> list[dict[str, Any]] | None:
        """The clusters that are or were as plain rows, or None as long as nothing was split."""
        return [self._row(number) for number in sorted({*self.nodes, *self.last})] if self.nodes else None

    def _row(self, number: int) -> dict[str, Any]:
        node = self.nodes.get(number) or TreeNode(number, None, [], 0)
        row = {name: getattr(node, name) for name in ("id", "parent", "born", "children", "split_round", "reason")}
        size = self.last[number].members if number in self.last else None
        return row | {"size": size, "accuracy": self.accuracy.get(number)}


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
        self.growth = ShownGrowth()
        self.damaged = ""
        """Why the reading ended before the end of the file; empty where it did not."""
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
            with open_plain(self.path) as file:
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
        self.damaged = ""
        file.seek(self._offset)
        # What follows the last line break is a line that is still being written: it waits for its end.
        for line in file.read().split(b"\n")[:-1]:
            if not self._take(line):
                break
            self._offset += len(line) + 1

    def _take(self, line: bytes) -> bool:
        """Add a line; False for one that is damaged or out of order, which only a new file can repair."""
        try:
            value = parse_json(line)
            if isinstance(value, dict):
                value.pop(CHECKSUM, None)
            record = from_json(RoundRecord, value, self.path.name)
            if record.round != len(self.records) + 1:
                raise ValueError(f"round {record.round} follows round {len(self.records)}")
            self.growth.add(record)
        except (ValueError, RunError) as problem:
            self.damaged = f"{self.path.name}, line {len(self.records) + 1}: {problem}"
            return False
        self.records.append(_compact(record))
        return True


def _compact(record: RoundRecord) -> dict[str, Any]:
    shown = record.clusters if len(record.clusters) <= MOST_CLUSTERS else []
    names = ("id", "members", "metrics")
    return {
        "round": record.round,
        "metrics": {name: spread.mean for name, spread in record.metrics.items()},
        "worst": record.accuracy.worst10,
        "seconds": record.seconds,
        "up": record.bytes.up,
        "down": record.bytes.down,
        "count": len(record.clusters),
        "clusters": [{name: getattr(cluster, name) for name in names} for cluster in shown],
        "splits": len(record.splits),
        "epsilon": record.epsilon,
        "events": [{"kind": event.kind, "text": event.text} for event in record.events],
    }


def thinned(records: Sequence[dict[str, Any]], most: int = MOST_RECORDS) -> list[dict[str, Any]]:
    """About `most` of the records: evenly spaced, the last, and every one in which a cluster was split."""
    if len(records) <= most:
        return list(records)
    step = -(-len(records) // most)
    last = len(records) - 1
    return [record for i, record in enumerate(records) if i % step == 0 or i == last or record["splits"]]
