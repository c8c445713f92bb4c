"""Rounds, newcomers and served models once relatedness is known: what FLT and its PCA baseline share.

The state is a graph of relatives (or clusters that stay as they are), or clusters that grow by held-out benefit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coterie.methods.base import Assignment, Info
from coterie.methods.embedding import Embedded, NoCentroids
from coterie.methods.graph_averaging import State, averaging_round, graph_assignment
from coterie.methods.relatives import Distance, Relatives, positions_of, with_distances, with_newcomers
from coterie.methods.relatives_growing import (
    GrowingRelatives,
    follow_clients,
    growing_round,
    known_also,
    nearest_leaves,
)
from coterie.methods.server import Server

RelatedState = State | GrowingRelatives


def begin(relatives: Relatives, server: Server) -> State:
    """All clients with one model."""
    return State(relatives, server.initial_model()[None], (0,) * len(relatives.ids))


def related_round(state: RelatedState, t: int, server: Server, distance: Distance) -> tuple[RelatedState, Info]:
    """A round of averaging (Algorithm 3, lines 4-20), with the distances between clients in the report of the first."""
    after: RelatedState
    if isinstance(state, GrowingRelatives):
        after, info = growing_round(state, t, server, distance)
    else:
        after, info = averaging_round(state, t, server)
    return after, with_distances(info, after.relatives, distance) if t == 1 else info


def related_assignment(state: RelatedState, server: Server) -> Assignment:
    """Every client's model."""
    if isinstance(state, GrowingRelatives):
        return state.tree.assignment(server.clients, {})
    return graph_assignment(state, server)


def with_latecomers(
    state: RelatedState, server: Server, embed: Callable[[Sequence[str]], Embedded], distance: Distance
) -> RelatedState:
    """The state with clients that came later, as far as they answer; no other client moves."""
    known = set(state.relatives.ids)
    late = [client for client in server.clients if client not in known]
    try:
        found = embed(late) if late else None
    except NoCentroids:
        found = None  # the next round asks again
    if isinstance(state, GrowingRelatives):
        return follow_clients(state if found is None else known_also(state, found), server, distance)
    return state if found is None else _joined(state, found, distance)


def place_by_inputs(state: RelatedState, found: Embedded, distance: Distance) -> dict[str, int]:
    """The model of each newcomer: that of the nearest cluster, or of the nearest client."""
    if isinstance(state, GrowingRelatives):
        return dict(zip(found.ids, nearest_leaves(state, found.centroids, distance), strict=True))
    rows = _joined(state, found, distance).row[len(state.row) :]
    return dict(zip(found.ids, rows, strict=True))


def _joined(state: State, found: Embedded, distance: Distance) -> State:
    """The state with newcomers, each with the model of its nearest cluster or client."""
    relatives, nearest = with_newcomers(state.relatives, found, positions_of(found, state.relatives), distance)
    return State(relatives, state.models, state.row + tuple(state.row[i] for i in nearest))
