"""What a run is judged by: each client's own test data under the model it was given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.clustering import adjusted_rand_index
from coterie.engines.base import Engine
from coterie.messages import Order
from coterie.methods import Assignment
from coterie.tasks import Evaluate


@dataclass(frozen=True)
class ClientScore:
    """One client's result: NaN where it has no such data, or where targets are real numbers."""

    client: str
    cluster: int
    samples: int
    loss: float
    accuracy: float


def score_clients(assignment: Assignment, engine: Engine, part: str = "test") -> list[ClientScore]:
    """Loss and accuracy of every client with its own model, in the order of the engine's clients."""
    orders, cluster_of = [], {}
    for cluster, (model, members) in enumerate(zip(assignment.models, assignment.members, strict=True)):
        task = Evaluate(model[None], part, assignment.private)
        for client in members:
            other = assignment.exceptions.get(client)
            orders.append(Order(client, task if other is None else Evaluate(other[None], part, assignment.private)))
        cluster_of.update(dict.fromkeys(members, cluster))
    scores = {}
    for block in engine.run(orders):
        for reply in block:
            scores[reply.client] = ClientScore(
                reply.client,
                cluster_of[reply.client],
                reply.samples,
                reply.values["loss"][0],
                reply.values["accuracy"][0],
            )
    return [scores[client] for client in engine.clients if client in scores]


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, extremes, variance, and the means of the worst and best tenth (at least one client) of the values."""
    known = np.sort([value for value in values if not math.isnan(value)])
    if not len(known):
        return dict.fromkeys(("mean", "min", "max", "variance", "worst10", "best10"))
    tenth = max(1, len(known) // 10)
    return {
        "mean": float(known.mean()),
        "min": float(known[0]),
        "max": float(known[-1]),
        "variance": float(known.var()) if math.isfinite(known[-1]) else math.inf,
        "worst10": float(known[:tenth].mean()),
        "best10": float(known[-tenth:].mean()),
    }


def mean(values: Sequence[float]) -> float | None:
    """The mean of the known values, or None."""
    return spread(values)["mean"]


def plain(value: Any) -> Any:
    """The nested value with None for every number that JSON cannot hold (a loss that overflowed, say)."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def partition_score(members: Sequence[Sequence[str]], ids: Sequence[str], groups: Sequence[int] | None) -> float | None:
    """Adjusted Rand index of the clusters against the hidden groups, or None when these are unknown."""
    if groups is None:
        return None
    cluster_of = {client: i for i, cluster in enumerate(members) for client in cluster}
    return float(adjusted_rand_index([cluster_of[client] for client in ids], list(groups)))


def check_partition(members: Sequence[Sequence[str]], clients: Sequence[str]) -> None:
    """Raise unless every client is in exactly one cluster: the invariant that published code breaks."""
    counted = sorted(client for cluster in members for client in cluster)
    if counted != sorted(clients):
        raise AssertionError(f"clusters are not a partition of the clients: {len(counted)} places, {len(clients)} ids")


def scores_table(scores: Sequence[ClientScore]) -> list[dict[str, Any]]:
    """The scores as plain rows, with None for what is unknown."""
    return [
        {
            "client": s.client,
            "cluster": s.cluster,
            "test_samples": s.samples,
            "loss": s.loss if math.isfinite(s.loss) else None,
            "accuracy": None if math.isnan(s.accuracy) else s.accuracy,
        }
        for s in scores
    ]
