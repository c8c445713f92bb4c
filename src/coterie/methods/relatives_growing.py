"""Clusters of related clients without a threshold or a number: one cluster first, split where held-out data gains.

Where a cluster may be split is read from its members' inputs: the last merges of their dendrogram, by Ward's method on
the rows of their distances. Whether it is split is held-out benefit's question, as in CFL and IFCA. Where inputs show
nothing that helps there is one cluster, which is FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.clustering.agglomerative import cut
from coterie.clustering.relatedness import ward_merges
from coterie.errors import ConfigError
from coterie.methods.base import Event, Info
from coterie.methods.cfl import CFL
from coterie.methods.compared import Compared, ComparedHalves
from coterie.methods.embedding import Embedded
from coterie.methods.relatives import DISTANCES, Distance, Relatives, undivided
from coterie.methods.server import Server
from coterie.methods.splitting import BenefitRule, grow
from coterie.methods.splitting.candidates import LEVELS, Candidate, Looks
from coterie.methods.tree import Tree
from coterie.snapshot import saved


@saved
class GrowingRelatives:
    """The clusters as leaves of a tree, and the centroids of all clients that ever had a place."""

    relatives: Relatives
    tree: Tree
    memory: dict[int, Any]


@dataclass(frozen=True)
class RelatednessRule(BenefitRule):
    """Held-out benefit of splits that the clients' inputs suggest."""

    reproduces: ClassVar[bool] = False

    relatives: Relatives = field(kw_only=True)
    distance: Distance = "min"

    def propose(self, memory: Looks, halves: ComparedHalves) -> tuple[Looks, list[Candidate]]:
        row = {client: i for i, client in enumerate(self.relatives.ids)}
        distances = self.relatives.distances(self.distance)
        merges = ward_merges(distances[[row[client] for client in halves.clients]])
        levels = [cut(merges, parts) for parts in LEVELS if parts <= len(halves.clients)]
        found = [Candidate((level, level), level) for level in levels]
        return replace(memory, clients=halves.clients), found


@saved
class Summed(Compared):
    """Half-updates that go into sums alone: candidates from inputs need no single ones."""

    def of_halves(self, clients: Sequence[str], model: Tensor, t: int, server: Server) -> ComparedHalves:
        large = tuple(client for client in clients if server.samples[client] > 1)
        return ComparedHalves(large, torch.zeros(2, len(large), 0), None)


def start_growing(relatives: Relatives, server: Server) -> GrowingRelatives:
    """One cluster of all clients that sent centroids."""
    if not server.asks_halves:
        raise ConfigError(
            "clients here cannot be asked about halves of their data, by which flt decides: give clusters"
        )
    tree = Tree.single(relatives.ids, server.initial_model())
    return GrowingRelatives(relatives, tree, {0: BenefitRule().begin()})


def growing_round(state: GrowingRelatives, t: int, server: Server, distance: Distance) -> tuple[GrowingRelatives, Info]:
    """FedAvg in every cluster, as in CFL; then the rule looks at each."""
    rule = RelatednessRule(relatives=state.relatives, distance=distance)
    rounds = CFL().federated_learning(state.tree, rule, t, server)
    if server.sums_only:
        rounds = [seen._replace(compared=Summed()) for seen in rounds]
    tree, memory, info = grow(state.tree, state.memory, rule, rounds, t, server)
    first = [Event("relatedness", state.relatives.text)] if t == 1 else []
    return replace(state, tree=tree, memory=memory), replace(info, events=[*first, *info.events])


def follow_clients(state: GrowingRelatives, server: Server, distance: Distance) -> GrowingRelatives:
    """The state without the clients that left; those in no cluster whose centroids are known join the nearest one."""
    present, row = set(server.clients), {client: i for i, client in enumerate(state.relatives.ids)}
    members = {leaf.id: [client for client in leaf.members if client in present] for leaf in state.tree.leaves()}
    placed = set(chain(*members.values()))
    outside = [client for client in server.clients if client in row and client not in placed]
    positions = state.relatives.positions[[row[client] for client in outside]]
    for client, leaf in zip(outside, nearest_leaves(state, positions, distance), strict=True):
        members[leaf].append(client)
    changed = [replace(state.tree.nodes[number], members=tuple(own)) for number, own in members.items()]
    return replace(state, tree=state.tree.updated(*changed))


def known_also(state: GrowingRelatives, found: Embedded) -> GrowingRelatives:
    """The state with the centroids of newcomers, who are in no cluster yet."""
    known = state.relatives
    everyone = Embedded(known.ids + found.ids, np.concatenate([known.centroids, found.centroids]))
    return replace(state, relatives=undivided(everyone))


def nearest_leaves(state: GrowingRelatives, positions: npt.NDArray[np.float32], distance: Distance) -> list[int]:
    """The leaf whose members' centroids are nearest on average to each of the centroids `(N, k, e)`."""
    if not len(positions):
        return []
    known = state.relatives
    row = {client: i for i, client in enumerate(known.ids)}
    distances = DISTANCES[distance](np.concatenate([known.positions, positions]))[len(known.ids) :]
    leaves = [leaf for leaf in state.tree.leaves() if leaf.members]
    means = [distances[:, [row[client] for client in leaf.members]].mean(axis=1) for leaf in leaves]
    return [leaves[i].id for i in np.stack(means).argmin(axis=0).tolist()]
