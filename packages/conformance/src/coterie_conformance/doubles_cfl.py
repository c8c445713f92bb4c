"""A double of CFL in few lines, as the authors' notebook has it, with its slips to be switched on one at a time.

Every client holds a model of its own, to which the mean update of its cluster is added: that is how lost clients stay
where they are, and doubled ones are moved twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import bipartition, cosine_matrix, gamma_criterion
from coterie.methods import Assignment, ClusterInfo, ClusterSplit, Info, Server, saved

Slip = Literal["none", "positions", "complete linkage"]


@saved
class State:
    """The clients in a fixed order, the model `(M, d)` that each holds, and the clusters by id, split or not."""

    clients: tuple[str, ...]
    held: Tensor
    clusters: dict[int, tuple[str, ...]]
    """The clusters that have not been split."""
    made: int
    """Clusters made so far."""
    split_in: int
    """The round of the last split."""


@dataclasses.dataclass(frozen=True)
class PlainCFL:
    """Split a cluster in two by the cosines of its clients' updates, once its mean update is small (Algorithm 2)."""

    slip: Slip = "none"
    eps1: float = 100.0
    """The norm that the mean update must be below."""
    eps2: float = 0.0
    """The norm that some update must be above."""
    gamma_max: float = 0.0
    """What sqrt((1 − α_cross_max) / 2) must be above."""
    min_rounds: int = 1
    """Rounds before the first split."""
    patience: int = 1
    """Rounds between two splits."""

    def start(self, server: Server) -> State:
        clients = tuple(server.clients)
        return State(clients, server.initial_model().repeat(len(clients), 1), {0: clients}, 1, 0)

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        state = _with_newcomers(state, server)
        row = {client: i for i, client in enumerate(state.clients)}
        asked = [client for client in server.participants(t) if client in row]
        models = {client: state.held[row[client]].clone() for client in asked}
        updates = {
            reply.client: reply.vector.double()
            for reply in server.ask(server.training_requests(asked, models, t))
            if reply.vector is not None
        }
        clusters: dict[int, tuple[str, ...]] = {}
        splits = []
        made, split_in = state.made, state.split_in
        for number, members in state.clusters.items():
            sides = self._sides(members, updates, t, state, server)
            if sides is None:
                clusters[number] = members
                continue
            children = (made, made + 1)
            made, split_in = made + 2, t
            splits.append(ClusterSplit(number, children, sides))
            clusters |= dict(zip(children, sides, strict=True))
        held = state.held.clone()
        for members in clusters.values():
            heard = [client for client in members if client in updates]
            if heard:
                step = _mean(heard, updates, server)
                for client in members:  # one that is in two clusters is moved twice
                    held[row[client]] += step.to(held.dtype)
        infos = [ClusterInfo(len(members), id=number) for number, members in clusters.items() if members]
        return State(state.clients, held, clusters, made, split_in), Info(infos, splits=splits)

    def _sides(
        self, members: Sequence[str], updates: dict[str, Tensor], t: int, state: State, server: Server
    ) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The two sides of a cluster that is to be split, or None."""
        heard = [client for client in members if client in updates]
        due = t >= self.min_rounds and (state.split_in == 0 or t - state.split_in >= self.patience)
        if not due or len(heard) < max(2, len(members)):
            return None
        width = server.layout.trainable
        vectors = torch.stack([updates[client][:width] for client in heard]).float()
        mean = _mean(heard, updates, server)[:width].norm()
        if float(mean) >= self.eps1 or float(vectors.norm(dim=1).max()) <= self.eps2:
            return None
        found = bipartition(cosine_matrix(vectors), "complete" if self.slip == "complete linkage" else "single")
        if gamma_criterion(found.alpha_cross_max) <= self.gamma_max:
            return None
        # The slip: positions among the members are taken for positions among all the clients.
        names = state.clients if self.slip == "positions" else heard
        return tuple(names[i] for i in found.first), tuple(names[i] for i in found.second)

    def assignment(self, state: State, server: Server) -> Assignment:
        """Every cluster with the model of its first client; what the others hold is theirs, if it is another one."""
        state = _with_newcomers(state, server)
        row, present = {client: i for i, client in enumerate(state.clients)}, set(server.clients)
        members = {j: [c for c in own if c in present] for j, own in state.clusters.items()}
        taken = {j: own for j, own in members.items() if own}
        models = {j: state.held[row[own[0]]].clone() for j, own in taken.items()}
        return Assignment(list(models.values()), list(taken.values()), ids=list(taken))

    def held_by(self, state: State, server: Server) -> Assignment:
        """Every client by itself with the model that it holds, lost or not: what it is measured by."""
        return Assignment(list(state.held), [(client,) for client in state.clients])


def _mean(clients: Sequence[str], updates: dict[str, Tensor], server: Server) -> Tensor:
    weights = torch.tensor([server.weight(client, "samples") for client in clients], dtype=torch.float64)
    return weights @ torch.stack([updates[client] for client in clients]) / weights.sum()


def _with_newcomers(state: State, server: Server) -> State:
    """The state with clients that came later, in the largest cluster; those that left stay in the tables."""
    new = tuple(client for client in server.clients if client not in state.clients)
    if not new:
        return state
    largest = max(state.clusters, key=lambda j: len(state.clusters[j]))
    model = state.held[state.clients.index(state.clusters[largest][0])]
    clusters = state.clusters | {largest: state.clusters[largest] + new}
    held = torch.cat([state.held, model.repeat(len(new), 1)])
    return dataclasses.replace(state, clients=state.clients + new, held=held, clusters=clusters)


def lost_and_doubled(state: State) -> tuple[int, int]:
    """How many clients are in no cluster, and how many in two or more."""
    counts = np.array([sum(client in own for own in state.clusters.values()) for client in state.clients])
    return int((counts == 0).sum()), int((counts > 1).sum())


def labels_of(state: State) -> list[int]:
    """The first cluster of each client; one that is in none is alone."""
    return [
        next((j for j, own in state.clusters.items() if client in own), -1 - i)
        for i, client in enumerate(state.clients)
    ]
