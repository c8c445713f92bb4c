"""A part of every client's training data that is held out, to choose by: early stopping, sweeps."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.federation.base import Client, Federation, Split
from coterie.federation.changing import ChangingFederation
from coterie.randomness import torch_generator

ON_DISK_BYTES = 2**26
"""Inputs above this may be mapped from a file: their last rows are held out, because a random choice would copy them.
"""


def hold_out(federation: Federation, fraction: float, seed: int) -> Federation:
    """The federation with a fraction of every client's training samples as validation data.

    They are drawn by (seed, client), so that every class has its share where labels are classes. A client with one
    sample keeps it for training. Validation data that a client has already stays, with these beside it.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"validation={fraction!r}: expected a fraction above 0 and below 1")
    if isinstance(federation, ChangingFederation):
        held: dict[int, Client] = {}  # a client that stays the same is held out of once
        phases = {}
        for start, phase in federation.phases.items():
            for client in phase:
                held.setdefault(id(client), hold_out_of(client, fraction, seed))
            phases[start] = phase.with_clients([held[id(client)] for client in phase])
        return ChangingFederation(phases)
    return federation.with_clients([hold_out_of(client, fraction, seed) for client in federation])


def hold_out_of(client: Client, fraction: float, seed: int) -> Client:
    """One client with a fraction of its training samples as validation data."""
    train = client.train
    n = len(train)
    count = min(max(1, round(fraction * n)), n - 1)
    if count == 0:
        return client
    if train.x.numel() * train.x.element_size() > ON_DISK_BYTES:
        kept, held = (
            Split(train.x[: n - count], train.y[: n - count]),
            Split(train.x[n - count :], train.y[n - count :]),
        )
    else:
        chosen = torch.zeros(n, dtype=torch.bool)
        chosen[_drawn(train.y, count, torch_generator(seed, "validation", client.id))] = True
        kept, held = Split(train.x[~chosen], train.y[~chosen]), Split(train.x[chosen], train.y[chosen])
    old = client.validation
    if len(old):
        held = Split(torch.cat([old.x, held.x]), torch.cat([old.y, held.y]))
    return replace(client, train=kept, validation=held)


def _drawn(targets: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Places of `count` samples: at equal steps through a random order that is sorted by class."""
    n = len(targets)
    order = torch.randperm(n, generator=generator)
    if targets.ndim == 1 and not targets.is_floating_point():
        order = order[torch.sort(targets[order], stable=True).indices]
    steps = (torch.arange(count, dtype=torch.float64) + 0.5) * (n / count)
    return order[steps.long()]
