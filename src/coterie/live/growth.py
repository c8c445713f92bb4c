"""CFL's tree as the history tells it: every split event adds two nodes, so no checkpoint is needed to draw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class GrowingNode:
    """A cluster that is or was, as `coterie.methods.tree.Node` numbers them, with its last size and accuracy."""

    id: int
    parent: int | None
    born: int
    size: int | None = None
    accuracy: float | None = None
    children: list[int] = field(default_factory=list)
    split_round: int | None = None
    evidence: dict[str, float] = field(default_factory=dict)


class Growth:
    """Follows the records of a run, in order, and keeps the tree that its splits make."""

    def __init__(self) -> None:
        self.nodes = [GrowingNode(0, None, 0)]

    def leaves(self) -> list[GrowingNode]:
        """The present clusters in order of their ids, which is the order of the history's clusters."""
        return [node for node in self.nodes if not node.children]

    def add(self, t: int, clusters: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]) -> list[int]:
        """Take one round in; gives the node of each cluster, or plain positions for a method without a tree."""
        for event in events:
            self._split(t, event)
        leaves = self.leaves()
        if len(leaves) != len(clusters):  # clusters of another method, or a leaf that everybody has left
            return list(range(len(clusters)))
        for leaf, cluster in zip(leaves, clusters, strict=True):
            leaf.size = cluster.get("members")
            if cluster.get("accuracy") is not None:
                leaf.accuracy = cluster["accuracy"]
        return [leaf.id for leaf in leaves]

    def _split(self, t: int, event: Mapping[str, Any]) -> None:
        details = event.get("details")
        if event.get("kind") != "split" or not isinstance(details, dict):
            return
        parent = details.get("cluster")
        if not isinstance(parent, int) or not 0 <= parent < len(self.nodes) or self.nodes[parent].children:
            return
        old, first = self.nodes[parent], len(self.nodes)
        self.nodes += [GrowingNode(first, parent, t), GrowingNode(first + 1, parent, t)]
        old.children, old.split_round = [first, first + 1], t
        old.evidence = {
            name: value for name, value in details.items() if name != "cluster" and isinstance(value, int | float)
        }

    def table(self) -> list[dict[str, Any]] | None:
        """The nodes as plain rows, or None as long as nothing was split."""
        return [asdict(node) for node in self.nodes] if len(self.nodes) > 1 else None
