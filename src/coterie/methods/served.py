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

    def sure(self, client: int, way: int) -> bool:
        """Whether a way surely helps the clients together, or this one by itself."""
        return min(self.together[way].p_value, self.alone[client][way].p_value) <= self.level

    def chosen(self) -> list[int | None]:
        """The way of each client: of those that surely help the one that gains most; None: none does."""
        found: list[int | None] = []
        for i, gains in enumerate(self.gains.tolist()):
            useful = {way: gain for way, gain in enumerate(gains) if gain > 0 and self.sure(i, way)}
            found.append(max(useful, key=lambda way: useful[way], default=None))
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
    """Judge ways by the losses and squared errors (clients, ways) over so many samples; the first is what they have."""
    from scipy.stats import t

    lowered, errors = losses[:, :1] - losses[:, 1:], errors[:, 1:]
    ways = range(lowered.shape[1])
    spread = np.sqrt(np.where(errors > 0, errors, math.inf))  # no error is known of a single sample
    p_values = t.sf(lowered / spread, np.maximum(np.array(samples)[:, None] - 1, 1))
    alone = [
        [Benefit(float(lowered[i, way]), float(spread[i, way]), float(p_values[i, way]), 1) for way in ways]
        for i in range(len(lowered))
    ]
    together = [benefit(lowered[:, way], errors[:, way]) for way in ways]
    gains = np.stack([shrunk(lowered[:, way], errors[:, way]) for way in ways], 1)
    return Judged(list(clients), gains, together, alone, LEVEL / len(ways))


def serve(tree: Tree, training: Training, t: int, server: Server) -> Ending:
    """Find out how the clients of a tree's clusters are served best.

    Args:
        tree: the clusters, and those that they were split from.
        training: how a client trains by itself for as long as one round.
        t: the round, for seeds.
        server: the clients.
    """
    above: dict[str, int] = {}
    models: dict[str, Tensor] = {}
    for leaf in tree.leaves():
        node = leaf if leaf.parent is None else tree.nodes[leaf.parent]
        above |= dict.fromkeys(leaf.members, node.id)
        models |= dict.fromkeys(leaf.members, torch.stack([leaf.model, node.model]))
    first = try_to_serve(models, training, t, server)
    if not first.clients:
        return Ending({}, (), [])
    last = len(WAYS) - 1
    alone = [client for i, client in enumerate(first.clients) if first.gains[i, last] > 0 and first.sure(i, last)]
    longer = _trained_on(alone, training, t, server)
    for client, doubled in longer.items():
        first.gains[first.clients.index(client), last] += doubled.gain
    chosen = {client: way for client, way in zip(first.clients, first.chosen(), strict=True) if way is not None}
    own = {client: way - 1 for client, way in chosen.items() if way > 0}
    own |= {client: way + longer[client].times for client, way in own.items() if way + 1 == last}
    for _ in server.ask([Request(client, ServeBy(own.get(client, -1))) for client in first.clients]):
        pass
    by_model = {client: above[client] for client, way in chosen.items() if way == 0}
    return Ending(by_model, tuple(own), _events(first, chosen, longer))


def try_to_serve(models: Mapping[str, Tensor], training: Training, t: int, server: Server) -> Judged:
    """Have clients try ways to serve them, by WAYS, each with its models; without validation data they are left out."""
    requests = [Request(c, TryToServe(own, training, server.seed_of(t, c, "own"))) for c, own in models.items()]
    replies = [reply for reply in server.ask(requests) if np.isfinite(reply.values["loss"]).all()]
    losses = np.array([reply.values["loss"] for reply in replies]).reshape(len(replies), -1)
    errors = np.array([reply.values["error"] for reply in replies]).reshape(losses.shape)
    return judged([reply.client for reply in replies], losses, errors, [reply.samples for reply in replies])


def _trained_on(clients: Sequence[str], training: Training, t: int, server: Server) -> dict[str, Doubled]:
    """How often each client doubled its own training: as long as that surely helps, at most to the run's length."""
    found = dict.fromkeys(clients, Doubled(0, 0.0))
    rounds, none = 1, torch.zeros(0, server.layout.size)
    while clients and 2 * rounds <= server.rounds:
        t += 1
        tried = try_to_serve(dict.fromkeys(clients, none), times_as_long(training, rounds), t, server)
        clients = []
        for i, longer in enumerate(tried.chosen()):
            if longer is not None:
                client, before = tried.clients[i], found[tried.clients[i]]
                found[client] = Doubled(before.times + 1, before.gain + float(tried.gains[i, 0]))
                clients.append(client)
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
        if not clients:
            continue
        text = f"{len(clients)} of {len(found.clients)} clients are served by {name}: validation loss falls "
        details: dict[str, Any] = {"way": name, "clients": clients}
        if found.together[way].p_value <= found.level:
            text += f"by {found.together[way]}"
            details |= _numbers(found.together[way])
        else:
            own = {client: found.alone[found.clients.index(client)][way] for client in clients}
            text += "for " + "; ".join(f"{client} by {gain}" for client, gain in own.items())
            details |= {"gains": {client: _numbers(gain) for client, gain in own.items()}}
        if way == len(WAYS) - 1:
            details |= {"own_rounds": {client: 2 ** longer[client].times for client in clients}}
        events.append(Event("served", text, details))
    return events


def _numbers(found: Benefit) -> dict[str, float]:
    return {"gain": found.gain, "gain_error": found.error, "p_value": found.p_value}
