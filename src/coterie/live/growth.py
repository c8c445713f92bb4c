"""Clusters as the history's records tell of them: who is in which, and the tree that splits make."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from coterie.runs.records import RoundRecord, split_reason


@dataclass
class GrowingNode:
    """A cluster that is or was, with its last size and accuracy."""

    id: int
    parent: int | None
    born: int
    size: int | None = None
    accuracy: float | None = None
    children: list[int] = field(default_factory=list)
    split_round: int | None = None
    reason: str = ""


class Growth:
    """Follows the records of a run, in order."""

    def __init__(self) -> None:
        self.nodes: dict[int, GrowingNode] = {}
        self.cluster_of: dict[str, int] = {}
        self.mixtures: dict[str, dict[int, float]] = {}
        self.split = False

    def add(self, record: RoundRecord) -> None:
        """Take one round in."""
        for split in record.splits:
            self.split = True
            old = self.nodes.setdefault(split.cluster, GrowingNode(split.cluster, None, 0))
            old.children, old.split_round, old.reason = list(split.children), record.round, split_reason(record, split)
            for child in split.children:
                self.nodes[child] = GrowingNode(child, old.id, record.round)
        for cluster in record.clusters:
            node = self.nodes.setdefault(cluster.id, GrowingNode(cluster.id, None, 0))
            node.size = cluster.members
            if cluster.accuracy is not None:
                node.accuracy = cluster.accuracy
        for client, number in record.assignment.items():
            if number is None:
                self.cluster_of.pop(client, None)
            else:
                self.cluster_of[client] = number
        self.mixtures |= record.mixtures

    def table(self) -> list[dict[str, Any]] | None:
        """The nodes as plain rows, or None as long as nothing was split."""
        return [asdict(self.nodes[number]) for number in sorted(self.nodes)] if self.split else None
