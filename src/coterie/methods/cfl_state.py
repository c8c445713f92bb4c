"""What CFL knows between rounds, and how it changes: a split, clients that come and go, and the words for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import cosine_matrix
from coterie.errors import RunError
from coterie.methods.base import ClusterInfo, ClusterSplit, Event, Matrix
from coterie.methods.cfl_check import Made, Watch, passed_on
from coterie.methods.server import Server
from coterie.methods.tree import Branch, Node, Tree
from coterie.privacy.projection import Compare
from coterie.snapshot import saved
from coterie.tasks import Request
from coterie.trainers.base import Training

MOST_IN_MATRIX = 1000
"""Members of a cluster whose similarities are kept for the report."""


LEAST_TOLD = 1e-20
"""Smaller p-values are not told as they are: no distribution is known so far out."""


@saved
class Trial:
    """Two children that train beside their parent until their gain is known (`when="gain"`)."""

    branches: tuple[Branch, Branch]
    stationary: Tensor
    began: int
    evidence: dict[str, float]


@saved
class Track:
    """What a cluster has shown since it began."""

    losses: tuple[float, ...] = ()
    largest_mean_norm: float = 0.0
    considered: int = 0
    trial: Trial | None = None
    watch: Watch = field(default_factory=Watch)


@saved
class State:
    """The tree, the track of every leaf, and what is known of single clients.

    `away` holds the leaf of clients that left, `fallback` the node that serves a client better than its leaf.
    """

    tree: Tree
    tracks: dict[int, Track]
    away: dict[str, int]
    fallback: dict[str, int]


class NoUpdate(RunError):
    """A newcomer that cannot be placed, because it gave no update."""

    def __init__(self, client: str) -> None:
        super().__init__(f"client {client!r} gave no update to be placed by: see the faults of the round")


class Accepted(NamedTuple):
    """A split to be made: the children, the model that their cluster was split at, and the evidence."""

    branches: tuple[Branch, ...]
    stationary: Tensor
    evidence: dict[str, float]


def split_leaf(
    state: State, leaf: Node, accepted: Accepted, t: int, infos: dict[int, ClusterInfo], watch: Watch | None = None
) -> State:
    """The state after a leaf has been replaced by its children; `watch` is what its checks have shown."""
    tree = state.tree.split(leaf.id, accepted.branches, t, accepted.evidence, accepted.stationary)
    children = tree.nodes[-len(accepted.branches) :]
    infos |= {child.id: ClusterInfo(len(child.members), id=child.id) for child in children}
    tracks = {i: track for i, track in state.tracks.items() if i != leaf.id}
    began = {child.id: Track(watch=passed_on(watch or Watch(), child.members)) for child in children}
    return replace(state, tree=tree, tracks=tracks | began)


Newcomer = Callable[[str, Tensor, int, Server], Tensor]
"""`(client, model, round, server) -> vector`: what a newcomer is placed by at a node's model."""


def follow_population(state: State, t: int, server: Server, newcomer: Newcomer) -> tuple[State, list[Event]]:
    """Clients that left are taken out; newcomers are placed by Algorithm 4, returning ones from where they were."""
    members = {client for leaf in state.tree.leaves() for client in leaf.members}
    present = set(server.clients)
    if members == present:
        return state, []
    events, tree, away = [], state.tree, dict(state.away)
    for leaf in tree.leaves():
        gone = [client for client in leaf.members if client not in present]
        if gone:
            away |= dict.fromkeys(gone, leaf.id)
            tree = tree.updated(replace(leaf, members=tuple(c for c in leaf.members if c in present)))
            events.append(Event("left", f"{', '.join(gone)} left cluster {leaf.id}", {"clients": gone}))
    for client in [c for c in server.clients if c not in members]:
        try:
            leaf = placed(tree, client, t, server, newcomer, away.get(client, 0))
        except NoUpdate as problem:
            # It stays outside the tree, and the next round tries again.
            events.append(Event("unplaced", str(problem), {"client": client}))
            continue
        away.pop(client, None)
        joined = {*leaf.members, client}
        tree = tree.updated(replace(leaf, members=tuple(c for c in server.clients if c in joined)))
        events.append(Event("joined", f"{client} joined cluster {leaf.id}", {"client": client, "cluster": leaf.id}))
    if tree is state.tree:
        return state, events
    # A trial or a check needs its own members.
    tracks = {
        i: replace(track, trial=None, watch=replace(track.watch, session=None)) for i, track in state.tracks.items()
    }
    return replace(state, tree=tree, away=away, tracks=tracks), events


def placed(tree: Tree, client: str, t: int, server: Server, newcomer: Newcomer, start: int = 0) -> Node:
    """The leaf of a newcomer by Algorithm 4, from the node `start` on."""
    return tree.descend(lambda model: newcomer(client, model, t, server), start)


def newcomer_update(client: str, model: Tensor, t: int, server: Server, training: Training | None = None) -> Tensor:
    """A newcomer's update `(trainable,)` when it trains from a node's model, as in the round or as given."""
    for reply in server.train([client], model, t, training):
        assert reply.vector is not None
        return reply.vector[: server.layout.trainable]
    raise NoUpdate(client)


def newcomer_projection(client: str, model: Tensor, t: int, server: Server, width: int) -> Tensor:
    """The keyed projection `(width,)` of a newcomer's update."""
    task = Compare(model, server.schedule.at(t), server.seed_of(t, client), width)
    for reply in server.ask([Request(client, task)]):
        return torch.tensor(reply.values["projection"])
    raise NoUpdate(client)


def splits_since(tree: Tree, before: int) -> list[ClusterSplit]:
    """The splits that made the nodes from number `before` on."""
    parents = dict.fromkeys(node.parent for node in tree.nodes[before:])
    found = [tree.nodes[parent] for parent in parents if parent is not None]
    return [
        ClusterSplit(node.id, node.children, [tree.nodes[child].members for child in node.children], node.evidence)
        for node in found
    ]


def similarity_matrix(leaf: Node, vectors: Tensor) -> list[Matrix]:
    """The cosine similarities `(members, members)` that a cluster was judged by, if it is not too large to keep."""
    if len(leaf.members) > MOST_IN_MATRIX:
        return []
    meaning = "cosine similarity of the clients' updates" if leaf.id == 0 else f"the same within cluster {leaf.id}"
    values = cosine_matrix(vectors).astype(np.float32)
    return [Matrix(f"similarity-{leaf.id}", leaf.members, values, meaning, similar=True)]


def split_event(leaf: Node, trial: Trial, flattened: bool) -> Event:
    seen = trial.evidence
    sizes = " and ".join(str(len(branch.members)) for branch in trial.branches)
    why = (
        f"its loss has stopped falling (exponent {seen['exponent']:.2f})"
        if flattened
        else f"its mean update has died down ({seen['mean_norm']:.3g}, largest {seen['max_norm']:.3g})"
    )
    text = (
        f"cluster {leaf.id} splits into {sizes}: {why}; separation {seen['separation']:.2f}, "
        f"noise level {seen['noise']:.2f}"
    )
    return Event("split", text, seen | {"cluster": leaf.id})


def split_by_check(
    state: State, leaf: Node, made: Made, t: int, infos: dict[int, ClusterInfo], watch: Watch
) -> tuple[State, Event]:
    """The state after the split that a check decided on, and what to tell of it."""
    least_sure = asdict(max(made.evidence, key=lambda evidence: evidence.conflict))
    numbers = {name: float(value) for name, value in least_sure.items() if value == value}
    accepted = Accepted(made.branches, made.stationary, numbers | {"bipartitions": float(len(made.evidence))})
    return split_leaf(state, leaf, accepted, t, infos, watch), checked_event(leaf, accepted)


def checked_event(leaf: Node, accepted: Accepted) -> Event:
    seen = accepted.evidence
    *most, last = [str(len(branch.members)) for branch in accepted.branches]
    several = len(most) > 1
    known = f"p {'≤' if several else '='} {seen['conflict']:.0e}"
    sure = known if seen["conflict"] >= LEAST_TOLD else f"p < {LEAST_TOLD:.0e}"
    if several:
        sure += f" in all {seen['bipartitions']:.0f} bipartitions"
    why = f"each side's step harms the other on labels both hold ({sure})"
    text = f"cluster {leaf.id} splits into {', '.join(most)} and {last}: {why}"
    return Event("split", text, seen | {"cluster": leaf.id})


def trial_event(leaf: Node, trial: Trial) -> Event:
    seen = trial.evidence
    sizes = " and ".join(str(len(branch.members)) for branch in trial.branches)
    text = (
        f"cluster {leaf.id} tries a split into {sizes}: separation {seen['separation']:.2f}, "
        f"noise level {seen['noise']:.2f}"
    )
    return Event("trial", text, seen | {"cluster": leaf.id})
