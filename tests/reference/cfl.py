"""CFL (Sattler, Müller, Samek 2020), Algorithms 1 to 5.

Where the paper is silent: of a cluster of which a part trains in a round, the mean is over that part, and all members
are compared at the cluster's model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from reference.clients import Clients, Round, Schedule, Vector, mates_of


def bipartition(alpha: Vector) -> tuple[list[int], list[int]]:
    """Algorithm 1 as printed: join the most similar pairs until two sets are left."""
    count = len(alpha)
    sets = [{i} for i in range(count)]
    for pair in np.argsort(-alpha, axis=None):
        if len(sets) == 2:
            break
        touched = [c for c in sets if pair // count in c or pair % count in c]
        sets = [c for c in sets if c not in touched] + [set().union(*touched)]
    return sorted(sets[0]), sorted(sets[1])


def cosine(one: Vector, other: Vector) -> float:
    """α of two updates (eq. 13)."""
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


@dataclass
class Node:
    """A node of the parameter tree: a cluster, its (stationary) parameters and the edge that leads to it (eq. 43)."""

    members: list[str]
    theta: Vector
    edge: list[Vector] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)

    def paths(self) -> Iterator[list[Node]]:
        """The way from here to every leaf."""
        if not self.children:
            yield [self]
        for child in self.children:
            yield from ([self, *rest] for rest in child.paths())


@dataclass
class CFL:
    """The server of Algorithm 5, with its means or those of Algorithm 2, and P a permutation of the numbers."""

    clients: Clients
    eps1: float
    eps2: float
    gamma_max: float
    weighting: str
    similarity: str
    permutation: Vector

    def run(self, theta: Vector, schedule: Schedule) -> Iterator[Round]:
        """The rounds, from one cluster of all."""
        self.root = root = Node(list(schedule[0][0]), theta)
        for t, (present, asked) in enumerate(schedule, 1):
            self.follow(root, present, t)
            for path in list(root.paths()):
                self.round(path[-1], set(asked), t)
            paths = [path for path in root.paths() if path[-1].members]
            models = {
                f"{client}, depth {depth}": node.theta
                for path in paths
                for client in path[-1].members
                for depth, node in enumerate(path)
            }
            yield Round(mates_of(path[-1].members for path in paths), models)

    def follow(self, root: Node, present: Sequence[str], t: int) -> None:
        """Clients that left are taken out; newcomers are assigned by Algorithm 4."""
        leaves = [path[-1] for path in root.paths()]
        known = {client for leaf in leaves for client in leaf.members}
        for leaf in leaves:
            leaf.members = [client for client in leaf.members if client in present]
        for client in [c for c in present if c not in known]:
            self.assign(root, client, t).members.append(client)

    def assign(self, node: Node, client: str, t: int) -> Node:
        """Algorithm 4: at each node to the child whose edge holds the most similar update."""
        while node.children:
            own = self.compared(client, node.theta, t)
            node = max(node.children, key=lambda child: max(cosine(own, update) for update in child.edge))
        return node

    def round(self, leaf: Node, asked: set[str], t: int) -> None:
        """Lines 12 to 24 of Algorithm 5 for one cluster."""
        updates = {i: self.update(i, leaf.theta, t) for i in leaf.members if i in asked}
        if not updates:
            return
        mean = self.clients.mean(updates, self.weighting)
        at_rest = np.linalg.norm(mean) < self.eps1 and max(map(np.linalg.norm, updates.values())) > self.eps2
        if at_rest and len(leaf.members) > 1:
            vectors = [self.compared(i, leaf.theta, t) for i in leaf.members]
            alpha = np.array([[cosine(one, other) for other in vectors] for one in vectors])
            sides = bipartition(alpha)
            if np.sqrt((1 - alpha[np.ix_(*sides)].max()) / 2) > self.gamma_max:
                leaf.children = [self.child(leaf, side, vectors, updates) for side in sides]
                return
        leaf.theta = leaf.theta + self.decrypted(mean)

    def child(self, leaf: Node, side: list[int], vectors: list[Vector], updates: dict[str, Vector]) -> Node:
        """One side of a split: the stationary parameters, moved by the mean of its own updates of this round."""
        members = [leaf.members[i] for i in side]
        own = {i: updates[i] for i in members if i in updates}
        step = self.decrypted(self.clients.mean(own, self.weighting)) if own else 0.0
        return Node(members, leaf.theta + step, [vectors[i] for i in side])

    def update(self, client: str, theta: Vector, t: int) -> Vector:
        """P(SGD(θ, D_i) − θ)."""
        return (self.clients.train(client, theta, t) - theta)[self.permutation]

    def compared(self, client: str, theta: Vector, t: int) -> Vector:
        """What similarities are computed of: the update (eq. 47), or the step along the gradient (eq. 46)."""
        if self.similarity == "gradient":
            return -self.clients.gradient(client, theta)[self.permutation]
        return self.update(client, theta, t)

    def decrypted(self, vector: Vector) -> Vector:
        """P⁻¹ v."""
        return vector[np.argsort(self.permutation)]
