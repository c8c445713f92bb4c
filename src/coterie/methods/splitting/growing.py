"""A tree of clusters that grows by a rule: the part that CFL and IFCA with an unknown number of models share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from coterie.methods.base import ClusterInfo, Event, Info, Matrix
from coterie.methods.server import Server
from coterie.methods.splitting.base import LeafRound, SplitRule
from coterie.methods.tree import Tree, splits_since


class Grown(NamedTuple):
    """The tree after a round, what the rule remembers by node, and what there is to report."""

    tree: Tree
    memory: dict[int, Any]
    info: Info


def grow(
    tree: Tree, memory: dict[int, Any], rule: SplitRule, rounds: Sequence[LeafRound], t: int, server: Server
) -> Grown:
    """Give every cluster its new model, split those that the rule splits, and undo splits that it takes back."""
    memory, before = dict(memory), len(tree.nodes)
    infos: dict[int, ClusterInfo] = {}
    events: list[Event] = []
    matrices: list[Matrix] = []
    for seen in rounds:
        leaf = seen.leaf
        look = rule.consider(memory[leaf.id], seen, t, server)  # CFL's Algorithm 3, lines 3-6
        memory[leaf.id], split = look.memory, look.split
        infos[leaf.id] = _info(seen, rule.thresholds(look.memory), server)
        matrices += look.matrices
        if split is None:
            tree = tree.updated(replace(leaf, model=seen.after))
            continue
        tree = tree.split(leaf.id, split.branches, t, split.evidence, split.model)  # lines 7-8
        if not rule.watches:
            del memory[leaf.id]
        for child in tree.nodes[-len(split.branches) :]:
            memory[child.id] = rule.inherited(look.memory, child.members)
        events.append(split.event(leaf.id))
    tree, undone = watch_splits(tree, memory, rule, t, server)
    events += undone
    if t == server.rounds and len(tree.leaves()) == 1:
        events.append(rule.why_whole(memory[0], server))
    kept = {number: own for number, own in memory.items() if tree.holds(number)}
    present = [leaf for leaf in tree.leaves() if leaf.members]
    clusters = [infos.get(leaf.id, ClusterInfo(len(leaf.members), id=leaf.id)) for leaf in present]
    return Grown(tree, kept, Info(clusters, events, splits_since(tree, before), matrices))


def _info(seen: LeafRound, thresholds: dict[str, float], server: Server) -> ClusterInfo:
    weights = [server.weight(reply.client, seen.weighting) for reply in seen.replies]
    losses = [reply.values["loss"] for reply in seen.replies]
    norm = float(seen.total.mean()[: server.layout.trainable].norm())
    loss = float(np.average(losses, weights=weights))
    return ClusterInfo(len(seen.leaf.members), loss, norm, seen.total.max_norm, seen.leaf.id, thresholds)


def watch_splits(
    tree: Tree, memory: dict[int, Any], rule: SplitRule, t: int, server: Server
) -> tuple[Tree, list[Event]]:
    """Look after the splits whose memory is kept, the first first; one that the rule undoes goes with all below it."""
    events = []
    for number in sorted(memory):
        parent = tree.nodes[number]
        if not parent.children or not tree.holds(number) or parent.split_round == t:
            continue
        watched = rule.watch(memory.pop(number), parent, tree.below(parent), t, server)
        if watched.memory is not None:
            memory[number] = watched.memory
        if watched.joint is not None:
            tree = tree.joined(number, watched.joint)
            text = f"the parts of cluster {number} are joined again: {watched.reason}"
            events.append(Event("undone", text, {"cluster": number}))
        if watched.moved:
            tree = tree.with_moved(watched.moved, server.clients)
            text = f"{len(watched.moved)} clients move to another part of cluster {number}, which serves them better"
            events.append(Event("moved", text, {"cluster": number, "clients": len(watched.moved)}))
    return tree, events
