"""FLT (Jamali-Rad, Abdizadeh, Szabó 2021), Algorithms 2 and 3, from the positions that UMAP gave the centroids.

Its slips: related means nearer than γ, not farther; the weights of a mean sum to one (eq. 13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from reference.clients import Clients, Round, Schedule, Vector


def distance(one: Vector, other: Vector, kind: str = "min") -> float:
    """Of two clients' centroids `(k, u)`: the nearest pair, or the mean of the best one-to-one match."""
    pairs = np.linalg.norm(one[:, None] - other[None], axis=2)
    if kind == "min":
        return float(pairs.min())
    return min(float(pairs[range(len(one)), list(order)].mean()) for order in permutations(range(len(other))))


def ward(rows: Vector, count: int) -> list[list[int]]:
    """Join the two clusters whose union adds least to the sum of squares, until `count` are left."""
    clusters = [[i] for i in range(len(rows))]

    def cost(a: list[int], b: list[int]) -> float:
        apart = rows[a].mean(axis=0) - rows[b].mean(axis=0)
        return len(a) * len(b) / (len(a) + len(b)) * float(apart @ apart)

    while len(clusters) > count:
        pairs = [(cost(a, b), i, j) for i, a in enumerate(clusters) for j, b in enumerate(clusters) if i < j]
        _, i, j = min(pairs)
        clusters[i] += clusters.pop(j)
    return clusters


@dataclass
class FLT:
    """Relatives by γ: as they are (case I), or as `clusters` disjoint clusters (case II)."""

    clients: Clients
    positions: Mapping[str, Vector]
    gamma: float
    clusters: int | None = None
    distance: str = "min"

    def relatives(self, ids: list[str]) -> dict[str, set[str]]:
        """Algorithm 2, lines 15 to 19."""
        near = np.array([[i == j or self.apart(i, j) < self.gamma for j in ids] for i in ids])
        if self.clusters is None:
            return {client: set(np.array(ids)[row].tolist()) for client, row in zip(ids, near, strict=True)}
        return {ids[i]: {ids[j] for j in own} for own in ward(near.astype(float), self.clusters) for i in own}

    def apart(self, i: str, j: str) -> float:
        """A_ij."""
        return distance(self.positions[i], self.positions[j], self.distance)

    def run(self, theta: Vector, schedule: Schedule) -> Iterator[Round]:
        """Algorithm 3."""
        ids = list(schedule[0][0])
        relatives, models = self.relatives(ids), dict.fromkeys(ids, theta)
        for t, (present, asked) in enumerate(schedule, 1):
            known = list(models)
            for client in [i for i in present if i not in models]:
                self.admit(client, known, relatives, models)
            trained = {i: self.clients.train(i, models[i], t) for i in asked}
            for i, own in relatives.items():  # line 17, and line 19 where relatives are a cluster
                heard = {j: trained[j] for j in asked if j in own}
                models[i] = self.clients.mean(heard, "samples") if heard else models[i]
            yield Round({i: frozenset(own) for i, own in relatives.items()}, models.copy())

    def admit(self, client: str, known: list[str], relatives: dict[str, set[str]], models: dict[str, Vector]) -> None:
        """A newcomer: related to those nearer than γ, with the model of the nearest; or in the nearest cluster."""
        near = {i: self.apart(client, i) for i in models}
        if self.clusters is None:
            own = {i for i in models if near[i] < self.gamma} | {client}
            nearest = min(known, key=lambda i: near[i])
        else:
            nearest = min(known, key=lambda i: np.mean([near[j] for j in relatives[i] if j in known]))
            own = relatives[nearest] | {client}
        relatives[client], models[client] = own, models[nearest]
        for i in own:
            relatives[i] = relatives[i] | {client}
