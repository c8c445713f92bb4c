"""What a run is judged by: each client's own test data under the model it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice

import torch

from coterie.clustering import adjusted_rand_index
from coterie.engines.base import Engine
from coterie.federation import Client
from coterie.methods import Assignment
from coterie.methods.base import Hidden
from coterie.metrics import ALWAYS, higher_is_better
from coterie.runs.records import Spread
from coterie.tasks import Evaluate, Reduction, Request, ScoreHidden
from coterie.trainers.losses import Loss, absolute_loss, squared_loss

SCORED_AT_ONCE = 50_000
"""Clients whose requests and replies are held at once, so that a million need no more memory than these."""


@dataclass(frozen=True, slots=True)
class ClientScore:
    """One client's metrics on its own data: NaN where it has none, or where a metric does not apply."""

    client: str
    cluster: int
    """Its cluster's id."""
    model: int
    """The id of the model it was measured with."""
    samples: int
    metrics: Mapping[str, float]
    mixture: Mapping[int, float] = field(default_factory=dict)
    """The weights of the models by id, where it was measured with a mixture."""


def score_clients(
    assignment: Assignment,
    engine: Engine,
    part: str = "test",
    among: Sequence[str] | None = None,
    extra: tuple[str, ...] = (),
) -> list[ClientScore]:
    """Loss, accuracy and `extra` metrics of every client (or those `among`) with its own model.

    In the order of the engine's clients.
    """
    scores: dict[str, ClientScore] = {}
    by_id = assignment.by_id
    served = assignment.served(among)

    @cache
    def task(models: tuple[int, ...]) -> Evaluate:
        """One for all clients that are evaluated with these models."""
        rows = by_id[models[0]][None] if len(models) == 1 else torch.stack([by_id[number] for number in models])
        return Evaluate(rows, part, assignment.private, extra)

    while some := {client.client: client for client in islice(served, SCORED_AT_ONCE)}:
        requests = []
        for client in some.values():
            asked = task(tuple(client.mixture) or (client.model_id,))
            if client.mixture:
                asked = replace(asked, weights=tuple(client.mixture.values()))
            requests.append(Request(client.client, asked))
        for reply in (reply for block in engine.run(requests) for reply in block.replies):
            own = some[reply.client]
            values = {name: reply.values[name][0] for name in (*ALWAYS, *extra)}
            scores[own.client] = ClientScore(own.client, own.cluster, own.model_id, reply.samples, values, own.mixture)
    return [scores[client] for client in (engine.clients if among is None else among) if client in scores]


def spreads(scores: Sequence[ClientScore]) -> dict[str, Spread]:
    """Every metric's spread over the clients."""
    names = dict.fromkeys(name for score in scores for name in score.metrics)
    return {
        name: Spread.of([score.metrics.get(name) for score in scores], higher_is_better=higher_is_better(name))
        for name in names
    }


def hidden_spreads(hidden: Hidden, engine: Engine, part: str, extra: tuple[str, ...] = ()) -> dict[str, Spread]:
    """The mean of every metric over the clients, from a secure sum: no client's value is seen."""
    task = ScoreHidden(hidden.models, hidden.kept, part, extra)
    requests = [Request(client, task) for client in engine.clients]
    reduction = Reduction([1.0] * len(requests), [0] * len(requests))
    totals = [block.sums[0] for block in engine.run(requests, reduction) if 0 in block.sums]
    if not totals:
        return {}
    values, counts = sum(totals[1:], totals[0]).chunk(2)
    return {
        name: Spread(mean=float(value) / round(float(count)), clients=round(float(count)))
        for name, value, count in zip((*ALWAYS, *extra), values, counts, strict=True)
        if round(float(count)) >= engine.capabilities.least_in_sum
    }


def constant_score(client: Client, loss: Loss | None) -> float | None:
    """The accuracy of the client's most common training label on its test data, or the loss of its mean target.

    None where it has no data, or where a loss of one's own says nothing of a mean.
    """
    train, test = client.train.y, client.test.y
    if not len(train) or not len(test):
        return None
    if not train.is_floating_point():
        return int((test == train.reshape(-1).mode().values).sum()) / test.numel()
    error = test.double() - train.double().mean(0)
    if loss is None or loss is squared_loss:
        return float(error.square().mean())
    return float(error.abs().mean()) if loss is absolute_loss else None


def partition_score(members: Sequence[Sequence[str]], ids: Sequence[str], groups: Sequence[int] | None) -> float | None:
    """Adjusted Rand index of the clusters against the hidden groups; None where these are unknown, or only one."""
    if groups is None or len(set(groups)) < 2:
        return None
    cluster_of = {client: i for i, cluster in enumerate(members) for client in cluster}
    return float(adjusted_rand_index([cluster_of[client] for client in ids], list(groups)))


def check_partition(members: Sequence[Sequence[str]], clients: Sequence[str]) -> None:
    """Raise unless every client is in exactly one cluster: the invariant that published code breaks."""
    counted = sorted(client for cluster in members for client in cluster)
    if counted != sorted(clients):
        raise AssertionError(f"clusters are not a partition of the clients: {len(counted)} places, {len(clients)} ids")
