"""FedAvg (McMahan et al. 2017) and FedProx (Li et al. 2020), which with μ = 0 is FedAvg."""

from __future__ import annotations

from collections.abc import Iterator

from reference.clients import Clients, Round, Schedule, Vector, mates_of


def fedavg(
    theta: Vector, schedule: Schedule, clients: Clients, weighting: str = "samples", mu: float = 0.0
) -> Iterator[Round]:
    """w ← Σ_k (n_k / n) w_k over the round's clients, each of which trains from w."""
    for t, (present, asked) in enumerate(schedule, 1):
        theta = clients.mean({i: clients.train(i, theta, t, mu) for i in asked}, weighting)
        yield Round(mates_of([present]), dict.fromkeys(present, theta))
