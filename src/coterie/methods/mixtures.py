"""Clients that are served by mixtures of models, where several methods do the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from coterie.methods.averaging import members_of
from coterie.methods.base import Assignment, ClusterInfo
from coterie.methods.server import Server
from coterie.tasks import Reply

Weights = Mapping[str, Sequence[float]]
"""How much of each model every client has, by position; they sum to one but for rounding."""


def mixture_assignment(models: Tensor, weights: Weights, server: Server, private: tuple[str, ...] = ()) -> Assignment:
    """Clients that are served by mixtures of models `(k, d)`, each in the cluster of the one that weighs most.

    A client without weights has all models alike.
    """
    k = len(models)
    given = {client: weights.get(client, [1 / k] * k) for client in server.clients}
    members = members_of({client: heaviest(own) for client, own in given.items()}, server.clients, k)
    ids = [j for j, clients in enumerate(members) if clients]
    mixtures = {client: _normalised(own) for client, own in given.items()}
    return Assignment(
        [models[j] for j in ids],
        [members[j] for j in ids],
        private,
        ids,
        served_by=mixtures if k > 1 else {},
        other_models={j: model for j, model in enumerate(models) if j not in ids},
    )


def _normalised(weights: Sequence[float]) -> dict[int, float]:
    total = sum(weights)
    return {j: weight / total for j, weight in enumerate(weights)}


def heaviest(weights: Sequence[float]) -> int:
    """The position of the largest weight, the first of several."""
    return max(range(len(weights)), key=lambda j: (weights[j], -j))


def mixture_infos(
    weights: Weights, replies: Iterable[Reply], updates: Sequence[Tensor], server: Server
) -> list[ClusterInfo]:
    """Of each model, moved by its update `(d,)`: how many clients have most of it, and the loss that these reported."""
    home = {client: heaviest(weights[client]) for client in server.clients if client in weights}
    told = {reply.client: float(reply.values["loss"]) for reply in replies}
    infos = []
    for j, update in enumerate(updates):
        own = [(told[client], server.weight(client, "samples")) for client in told if home.get(client) == j]
        loss = sum(value * weight for value, weight in own) / sum(weight for _, weight in own) if own else None
        norm = float(update[: server.layout.trainable].norm())
        infos.append(ClusterInfo(list(home.values()).count(j), loss, norm, id=j))
    return infos
