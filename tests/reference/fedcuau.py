"""FedCUAU (2022), Algorithm 1: clusters by the distance of a client's update from the mean one, then two-stage rounds.

Its slips: AU is the weighted mean without a further 1/N, likewise line 14; the smallest CUAU belongs to C1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from reference.clients import Clients, Round, Schedule, Vector, mates_of


def percentile_clusters(values: dict[str, float], count: int) -> dict[str, int]:
    """Line 9: i with P_(i−1)/C < CUAU_k ≤ P_i/C, from 0; P_q is the smallest value that a share q does not exceed."""
    ranked = sorted(values.values())
    bounds = [ranked[-(-i * len(ranked) // count) - 1] for i in range(1, count + 1)]
    return {k: next(i for i, bound in enumerate(bounds) if value <= bound) for k, value in values.items()}


def stage_one(fresh: Vector, everyone: list[str], clients: Clients, count: int) -> dict[str, int]:
    """Lines 2 to 9 on a fresh model; all layers train, the last one is looked at."""
    head = clients.network.head
    updates = {k: (clients.train(k, fresh, 1) - fresh)[head] for k in everyone}
    mean = clients.mean(updates, "samples")
    return percentile_clusters({k: float(np.linalg.norm(update - mean)) for k, update in updates.items()}, count)


def fedcuau(
    fresh: Vector,
    theta: Vector,
    schedule: Schedule,
    clients: Clients,
    count: int,
    weighting: str = "samples",
    mu: float = 0.0,
) -> Iterator[Round]:
    """θ holds {w^s, w^CC}; every other cluster has last layers of its own. A client that comes later is in CC."""
    head, last = clients.network.head, count - 1
    cluster = stage_one(fresh, list(schedule[0][0]), clients, count)
    specific = [theta[head].copy() for _ in range(last)]
    for t, (present, asked) in enumerate(schedule, 1):
        cluster |= {k: last for k in present if k not in cluster}
        trained = {k: clients.train(k, theta, t, mu) for k in asked}  # line 21
        for j in range(last):  # lines 22 to 24, w^s as the client has just trained it
            learned = {}
            for k in [k for k in asked if cluster[k] <= j]:
                start = trained[k].copy()
                start[head] = specific[j]
                learned[k] = clients.train(k, start, t, mu, only=head)[head]
            specific[j] = clients.mean(learned, weighting) if learned else specific[j]
        theta = clients.mean(trained, weighting)  # line 14
        models = [theta.copy() for _ in range(count)]
        for model, own in zip(models, specific, strict=False):
            model[head] = own
        members = [[k for k in present if cluster[k] == i] for i in range(count)]
        yield Round(mates_of(members), {k: models[cluster[k]] for k in present})
