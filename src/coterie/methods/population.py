"""Clients that come, leave and return, in a method that keeps a tree of models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from coterie.methods.base import Event
from coterie.methods.compared import NoUpdate
from coterie.methods.server import Server
from coterie.methods.tree import Node, Tree

Newcomer = Callable[[str, Tensor, int, Server], Tensor]
"""`(client, model, round, server) -> vector`: what a newcomer is placed by at a node's model."""


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
