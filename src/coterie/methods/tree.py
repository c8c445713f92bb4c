"""The parameter tree of CFL: every model on the way from the one for all to the one for a few stays usable.

Clients come, leave and return: `follow_population` keeps the tree true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.benefit import LEVEL
from coterie.clustering.sketch import similarity, sketch
from coterie.errors import ConfigError, did_you_mean
from coterie.methods.averaging import assignment_of
from coterie.methods.base import Assignment, ClusterSplit, Event
from coterie.methods.compared import NoUpdate
from coterie.methods.server import Server
from coterie.snapshot import saved
from coterie.tasks import HeldOut
from coterie.tasks.halves import OFFSET_SCALES

Newcomer = Callable[[str, Tensor, int, Server], Tensor]
"""`(client, model, round, server) -> vector`: what a newcomer is placed by at a node's model."""


@saved
class Node:
    """A cluster that is or was: its members, its model, and how it came to be split.

    `model` is the cluster's current model at a leaf and the stationary one it was split at elsewhere. `edge` holds
    sketches of the members' updates just before their parent was split, in the order of `edge_members`.
    """

    id: int
    parent: int | None
    members: tuple[str, ...]
    model: Tensor
    born: int
    children: tuple[int, ...] = ()
    split_round: int | None = None
    evidence: dict[str, float] = field(default_factory=dict)
    edge_members: tuple[str, ...] = ()
    edge: Tensor | None = None


@saved
class Branch:
    """A cluster to be: its members, the model it starts from, and sketches of their updates `(members, w)`."""

    members: tuple[str, ...]
    model: Tensor
    edge: Tensor


@saved
class Tree:
    """All nodes by id (their position); node 0 is the root. Trees are values: changes make new ones."""

    nodes: tuple[Node, ...]

    @classmethod
    def single(cls, members: Sequence[str], model: Tensor) -> Tree:
        """One cluster of all clients."""
        return cls((Node(0, None, tuple(members), model, 0),))

    def leaves(self) -> list[Node]:
        """The present clusters, in order of their ids."""
        return [node for node in self.nodes if not node.children and self.holds(node.id)]

    def holds(self, number: int) -> bool:
        """Whether a node is part of the tree: children that were joined again no longer are."""
        node = self.nodes[number]
        return node.parent is None or (node.id in self.nodes[node.parent].children and self.holds(node.parent))

    def leaf_of(self, client: str) -> Node:
        """The cluster a client is in now."""
        for node in self.leaves():
            if client in node.members:
                return node
        known = [member for node in self.leaves() for member in node.members]
        raise ConfigError(f"no client {client!r} in the tree: {did_you_mean(client, known)}")

    def path(self, node: Node) -> list[Node]:
        """The nodes from the root to this one."""
        steps = [node]
        while steps[-1].parent is not None:
            steps.append(self.nodes[steps[-1].parent])
        return steps[::-1]

    def below(self, node: Node) -> list[Node]:
        """The leaves that a node was split into, in order of their ids."""
        return [leaf for leaf in self.leaves() if node in self.path(leaf)]

    def updated(self, *changed: Node) -> Tree:
        """The tree with some nodes replaced by newer versions of themselves."""
        nodes = list(self.nodes)
        for node in changed:
            nodes[node.id] = node
        return Tree(tuple(nodes))

    def split(
        self,
        parent: int,
        branches: Sequence[Branch],
        t: int,
        evidence: dict[str, float],
        stationary: Tensor | None = None,
    ) -> Tree:
        """Give a leaf its children. The leaf keeps its model, or the `stationary` one, as what it was split at."""
        old, first = self.nodes[parent], len(self.nodes)
        children = tuple(
            Node(first + i, parent, branch.members, branch.model, t, edge_members=branch.members, edge=branch.edge)
            for i, branch in enumerate(branches)
        )
        model = old.model if stationary is None else stationary
        ids = tuple(child.id for child in children)
        split = replace(old, model=model, children=ids, split_round=t, evidence=evidence)
        return Tree((*self.updated(split).nodes, *children))

    def joined(self, parent: int, model: Tensor) -> Tree:
        """Make a cluster of a node's children again, with this model; the children leave the tree."""
        old = self.nodes[parent]
        members = tuple(client for leaf in self.below(old) for client in leaf.members)
        cluster = replace(old, members=members, model=model, children=(), split_round=None, evidence={})
        return self.updated(cluster)

    def with_moved(self, moved: Mapping[str, int], clients: Sequence[str]) -> Tree:
        """The tree with clients moved to other leaves; those that left the federation are taken out."""
        home = {client: leaf.id for leaf in self.leaves() for client in leaf.members} | dict(moved)
        own = {leaf.id: tuple(c for c in clients if home.get(c) == leaf.id) for leaf in self.leaves()}
        return self.updated(*(replace(leaf, members=own[leaf.id]) for leaf in self.leaves()))

    def assignment(self, clients: Sequence[str], served_by: Mapping[str, int]) -> Assignment:
        """Every client's leaf; those that could not be placed yet are served by the largest cluster.

        `served_by` are clients that another node's model serves better.
        """
        leaves = self.leaves()
        members = _members(leaves, clients)
        clusters = assignment_of([leaf.model for leaf in leaves], members, [leaf.id for leaf in leaves])
        present = set(clients)
        better = {client: node for client, node in served_by.items() if client in present}
        others = {node: self.nodes[node].model for node in better.values()}
        why = "their validation loss is surely lower there (fallback=false gives every client its cluster's model)"
        return replace(clusters, served_by=better, other_models=others, served_because=why)

    def descend(self, update_from: Callable[[Tensor], Tensor], start: int = 0) -> Node:
        """Algorithm 4: walk from a node to a leaf, each time to the child that holds the most similar update.

        `update_from(model)` is the newcomer's update `(d,)` when it trains from a node's model. A maximum runs
        over the edge to each child (the paper's indices slip).
        """
        node = self.nodes[start]
        while node.children:
            own = update_from(node.model)[None]
            best = [_most_similar(own, self.nodes[child]) for child in node.children]
            node = self.nodes[node.children[best.index(max(best))]]
        return node


def splits_since(tree: Tree, before: int) -> list[ClusterSplit]:
    """The splits that made the nodes from number `before` on."""
    parents = dict.fromkeys(node.parent for node in tree.nodes[before:])
    found = [tree.nodes[parent] for parent in parents if parent is not None]
    return [
        ClusterSplit(node.id, node.children, [tree.nodes[child].members for child in node.children], node.evidence)
        for node in found
    ]


def _members(leaves: Sequence[Node], clients: Sequence[str]) -> list[list[str]]:
    """Those of the clients that are in each leaf; those that are in none are in the largest."""
    present = set(clients)
    members = [[client for client in leaf.members if client in present] for leaf in leaves]
    placed = set().union(*members)
    max(members, key=len).extend(client for client in clients if client not in placed)
    return members


def _most_similar(own: Tensor, child: Node) -> float:
    """The largest cosine of an update `(1, d)` and those of an edge."""
    if child.edge is None or not len(child.edge):
        return float("-inf")
    return float(similarity(sketch(own)[0], child.edge).max())


def best_on_path(tree: Tree, server: Server) -> dict[str, int]:
    """Clients that a node on the way to their leaf surely serves better than the leaf, by their validation data."""
    better: dict[str, int] = {}
    for leaf in tree.leaves():
        better |= surely_better(leaf, tree.path(leaf)[-2::-1], LEVEL, server)
    return better


def surely_better(leaf: Node, others: Sequence[Node], level: float, server: Server) -> dict[str, int]:
    """The members of a leaf that one of the other nodes surely serves better, by their validation data, and which."""
    if not others or not leaf.members:
        return {}
    from scipy import stats  # it takes long to load, and few runs need it

    better: dict[str, int] = {}
    models = torch.stack([leaf.model, *(node.model for node in others)])[None]
    for reply in server.ask_all(leaf.members, HeldOut(models, None)):
        if reply.values["judged"] < 2:
            continue
        losses = np.array(reply.values["loss"]).reshape(len(OFFSET_SCALES), -1)[0]  # without an offset
        losses = np.nan_to_num(losses, nan=np.inf)  # any model is better than one that has diverged
        gains, errors = losses[0] - losses[1:], np.sqrt(np.nan_to_num(reply.values["within"]))
        # Student's test: a client may have very few validation samples, and their spread is known no better.
        least = stats.t.isf(level / len(others), reply.values["judged"] - 1) * errors
        best = int(np.where(gains > least, gains, -np.inf).argmax())
        if gains[best] > least[best]:
            better[reply.client] = others[best].id
    return better


def follow_population(state: Any, t: int, server: Server, newcomer: Newcomer) -> tuple[Any, list[Event]]:
    """Clients that left are taken out; newcomers are placed by Algorithm 4, returning ones from where they were.

    `state` has a `tree` and, in `away`, the leaf of clients that left.
    """
    members = {client for leaf in state.tree.leaves() for client in leaf.members}
    state, events = _without_those_gone(state, server)
    for client in [client for client in server.clients if client not in members]:
        state, event = _joined(state, client, t, server, newcomer)
        events.append(event)
    return state, events


def _without_those_gone(state: Any, server: Server) -> tuple[Any, list[Event]]:
    """The tree without the clients that left; their leaves are kept in `away`."""
    events, tree, away, present = [], state.tree, dict(state.away), set(server.clients)
    for leaf in tree.leaves():
        gone = [client for client in leaf.members if client not in present]
        if gone:
            away |= dict.fromkeys(gone, leaf.id)
            tree = tree.updated(replace(leaf, members=tuple(c for c in leaf.members if c in present)))
            events.append(Event("left", f"{', '.join(gone)} left cluster {leaf.id}", {"clients": gone}))
    return replace(state, tree=tree, away=away), events


def _joined(state: Any, client: str, t: int, server: Server, newcomer: Newcomer) -> tuple[Any, Event]:
    """The tree with a newcomer in its leaf; one that gives no update stays outside, and the next round tries again."""
    left = state.away.get(client, 0)
    try:
        leaf = placed(state.tree, client, t, server, newcomer, left if state.tree.holds(left) else 0)
    except NoUpdate as problem:
        return state, Event("unplaced", str(problem), {"client": client})
    joined = {*leaf.members, client}
    tree = state.tree.updated(replace(leaf, members=tuple(c for c in server.clients if c in joined)))
    away = {other: number for other, number in state.away.items() if other != client}
    event = Event("joined", f"{client} joined cluster {leaf.id}", {"client": client, "cluster": leaf.id})
    return replace(state, tree=tree, away=away), event


def placed(tree: Tree, client: str, t: int, server: Server, newcomer: Newcomer, start: int = 0) -> Node:
    """The leaf of a newcomer by Algorithm 4, from the node `start` on."""
    return tree.descend(lambda model: newcomer(client, model, t, server), start)
