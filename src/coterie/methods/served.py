"""In the end every client is served by what serves it best: its cluster's model, another, or a version of its own.

A client's own versions are the cluster's model with a private output offset, and the cluster's model trained further on
the client's own data for as long as that helps. All are judged on its validation data, which took no part in training.
A richer way is taken only where it surely helps: the cluster's clients on average, or the client by its own samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.benefit import LEVEL, Benefit, benefit, shrunk
from coterie.methods.base import Event
from coterie.methods.closed_form import Sharing
from coterie.methods.server import Server
from coterie.methods.tree import Tree
from coterie.tasks import ServeBy, TryToServe
from coterie.tasks.base import Request
from coterie.tasks.serving import SCALES
from coterie.trainers.base import Training

WAYS = (
    "the model that their cluster was split from",
    *(f"their cluster's model with {scale:g} of a private output offset" for scale in SCALES),
    "their cluster's model trained further on their own data",
)
"""What may serve clients better than their cluster's model, in words."""
TRAINED = len(WAYS) - 1
"""The last of them."""


def ways_known(sharing: Sharing) -> frozenset[int]:
    """Which of WAYS were surely better before training."""
    offsets = {1 + SCALES.index(way.option) for way in sharing.ways if way.chosen and way.kind == "offset"}
    return frozenset(offsets | {TRAINED for way in sharing.ways if way.chosen and way.kind == "own"})


Floats = npt.NDArray[np.float64]


class Judged(NamedTuple):
    """What ways to serve some clients gain over the first, on validation data."""

    clients: list[str]
    gains: Floats
    """(clients, ways) the gains as far as they are to be believed: those of few samples are drawn to the mean."""
    together: list[Benefit]
    """By way, what it gains for all of them."""
    alone: list[list[Benefit]]
    """By client and way, what it gains by the client's own samples."""
    level: float
    """The p-value from which down a gain is sure."""
    known: frozenset[int] = frozenset()
    """Ways that were sure before: they stay unless they gain nothing here."""

    def sure_together(self, way: int) -> bool:
        """Whether a way surely helps the clients together."""
        stays = way in self.known and self.together[way].gain > 0
        return stays or self.together[way].p_value <= self.level

    def sure(self, client: int, way: int) -> bool:
        """Whether a way surely helps the clients together, or this one by itself."""
        return self.sure_together(way) or self.alone[client][way].p_value <= self.level

    def gainers(self, way: int) -> list[str]:
        """The clients that a way surely helps."""
        return [client for i, client in enumerate(self.clients) if self.gains[i, way] > 0 and self.sure(i, way)]

    def chosen(self) -> dict[str, int]:
        """The way of each client that one surely helps: of those that do, the one that gains most."""
        found = {}
        for i, client in enumerate(self.clients):
            useful = {way: gain for way, gain in enumerate(self.gains[i].tolist()) if gain > 0 and self.sure(i, way)}
            if useful:
                found[client] = max(useful, key=lambda way: useful[way])
        return found


class Ending(NamedTuple):
    """How clients are served in the end: by another shared model (its number), or by a version of their own."""

    by_model: dict[str, int]
    own: tuple[str, ...]
    events: list[Event]


class Doubled(NamedTuple):
    """How often a client doubled its own training, and what that gained."""

    times: int
    gain: float


def judged(clients: Sequence[str], losses: Floats, errors: Floats, samples: Sequence[int]) -> Judged:
    """Judge ways by the losses and squared errors (clients, ways) over their samples; the first is what they have."""
    from scipy.special import stdtr

    lowered, errors = losses[:, :1] - losses[:, 1:], errors[:, 1:]
    ways = range(lowered.shape[1])
    spread = np.sqrt(np.where(errors > 0, errors, math.inf))  # no error is known of a single sample
    p_values = stdtr(np.maximum(np.array(samples)[:, None] - 1, 1), -lowered / spread)
    alone = [
        [Benefit(float(lowered[i, way]), float(spread[i, way]), float(p_values[i, way]), 1) for way in ways]
        for i in range(len(lowered))
    ]
    together = [benefit(lowered[:, way], errors[:, way]) for way in ways]
    gains = np.stack([shrunk(lowered[:, way], errors[:, way]) for way in ways], 1)
    return Judged(list(clients), gains, together, alone, LEVEL / len(ways))


def serve(tree: Tree, known: frozenset[int], training: Training, t: int, server: Server) -> Ending:
    """Find out how the clients of a tree's clusters are served best.

    Args:
        tree: the clusters, and those that they were split from.
        known: which of WAYS were sure before.
        training: how a client trains by itself for as long as one round.
        t: the round, for seeds.
        server: the clients.
    """
    above, models = _models_on_path(tree)
    first = try_to_serve(models, training, t, server)
    if not first.clients:
        return Ending({}, (), [])
    first = first._replace(known=_possible(known, first))
    longer = _trained_on(first.gainers(TRAINED), TRAINED in first.known, training, t, server)
    for client, doubled in longer.items():
        first.gains[first.clients.index(client), TRAINED] += doubled.gain
    chosen = first.chosen()
    versions = {client: _version(way, longer.get(client)) for client, way in chosen.items() if way > 0}
    for _ in server.ask([Request(client, ServeBy(versions.get(client, -1))) for client in first.clients]):
        pass
    by_model = {client: above[client] for client, way in chosen.items() if way == 0}
    return Ending(by_model, tuple(versions), _events(first, chosen, longer))


def _possible(known: frozenset[int], found: Judged) -> frozenset[int]:
    """Ways that were sure before; own training in place of offsets that change nothing: the model has no bias."""
    idle = frozenset(way for way in known if not found.gains[:, way].any())
    return known - idle | {TRAINED} if idle else known


def _models_on_path(tree: Tree) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Of every client the node above its cluster, and the models `(2, d)` of both."""
    above: dict[str, int] = {}
    models: dict[str, Tensor] = {}
    for leaf in tree.leaves():
        node = leaf if leaf.parent is None else tree.nodes[leaf.parent]
        above |= dict.fromkeys(leaf.members, node.id)
        models |= dict.fromkeys(leaf.members, torch.stack([leaf.model, node.model]))
    return above, models


def _version(way: int, longer: Doubled | None) -> int:
    """The number of a client's own version: the offsets come first, then its training, doubled so many times."""
    return way - 1 + (longer.times if way == TRAINED and longer is not None else 0)


def try_to_serve(models: Mapping[str, Tensor], training: Training, t: int, server: Server) -> Judged:
    """Have clients try ways to serve them, by WAYS, each with its models; without validation data they are left out."""
    tasks = {client: TryToServe(own, training, server.seed_of(t, client, "own")) for client, own in models.items()}
    requests = [Request(client, task) for client, task in tasks.items()]
    replies = [reply for reply in server.ask(requests) if np.isfinite(reply.values["loss"]).all()]
    ways = next(iter(tasks.values())).ways
    losses = np.array([reply.values["loss"] for reply in replies]).reshape(len(replies), ways)
    errors = np.array([reply.values["error"] for reply in replies]).reshape(losses.shape)
    return judged([reply.client for reply in replies], losses, errors, [reply.samples for reply in replies])


def _trained_on(clients: Sequence[str], known: bool, training: Training, t: int, server: Server) -> dict[str, Doubled]:
    """How often each client doubled its own training: as long as that surely helps, at most to the run's length.

    Where it was known before that own training helps, it goes on as long as it does not harm.
    """
    found = dict.fromkeys(clients, Doubled(0, 0.0))
    rounds, none = 1, torch.zeros(0, server.layout.size)
    while clients and 2 * rounds <= server.rounds:
        t += 1
        tried = try_to_serve(dict.fromkeys(clients, none), times_as_long(training, rounds), t, server)
        tried = tried._replace(known=frozenset({0} if known else ()))
        clients = tried.gainers(0)
        for client in clients:
            gain = float(tried.gains[tried.clients.index(client), 0])
            found[client] = Doubled(found[client].times + 1, found[client].gain + gain)
        rounds *= 2
    return found


def times_as_long(training: Training, times: int) -> Training:
    """The training, several times as long."""
    steps = None if training.steps is None else times * training.steps
    return replace(training, epochs=times * training.epochs, steps=steps)


def _events(found: Judged, chosen: Mapping[str, int], longer: Mapping[str, Doubled]) -> list[Event]:
    """What is to be recorded: every way that serves clients, with the test that said so."""
    events = []
    for way, name in enumerate(WAYS):
        clients = [client for client, own in chosen.items() if own == way]
        if clients:
            because, evidence = _evidence(found, way, clients)
            text = (
                f"{len(clients)} of {len(found.clients)} clients are served by {name}: validation loss falls {because}"
            )
            details: dict[str, Any] = {"way": name, "clients": clients, **evidence}
            if way == TRAINED:
                details["own_rounds"] = {client: 2 ** longer[client].times for client in clients}
            events.append(Event("served", text, details))
    return events


def _evidence(found: Judged, way: int, clients: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """By how much the loss of those served by a way falls: all clients together or, where that is not sure, each."""
    if found.sure_together(way):
        before = "" if found.together[way].p_value <= found.level else ", which was sure before training"
        return f"by {found.together[way]}{before}", found.together[way].numbers()
    own = {client: found.alone[found.clients.index(client)][way] for client in clients}
    words = "; ".join(f"{client} by {gain}" for client, gain in own.items())
    return f"for {words}", {"gains": {client: gain.numbers() for client, gain in own.items()}}
