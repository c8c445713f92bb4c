"""A part of every client's training data that is held out, to choose by: early stopping, sweeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from coterie.errors import ConfigError
from coterie.federation.base import Federation
from coterie.federation.blocks import draw_blocks
from coterie.federation.changing import ChangingFederation
from coterie.federation.client import Client, Split
from coterie.randomness import torch_generator

ON_DISK_BYTES = 2**26
"""Inputs above this may be mapped from a file: their last rows are held out, because a random choice would copy them.
"""


TUNING_SHARE = 0.2
"""Share of the training samples of a client without validation data that takes its place where options are chosen."""


def hold_out(federation: Federation, fraction: float, seed: int) -> Federation:
    """The federation with a fraction of every client's training samples as validation data.

    They are drawn by (seed, client): whole blocks where the samples have blocks, else so that every class has its
    share where labels are classes. A client with one sample, or one block, keeps it for training. Validation data that
    a client has already stays, with these beside it.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"validation={fraction!r}: expected a fraction above 0 and below 1")
    return _with_each(federation, lambda client: hold_out_of(client, fraction, seed))


def on_validation(federation: Federation, seed: int) -> Federation:
    """The federation with validation data in the place of test data, which stays unseen: to choose options by.

    Args:
        federation: the clients. Of one without validation data a fifth of the training data takes its place.
        seed: what that fifth is drawn by.
    """
    made = _with_each(federation, lambda client: _on_validation(client, seed))
    made.name = f"{federation.name}, validation data"
    return made


def _on_validation(client: Client, seed: int) -> Client:
    if len(client.validation):
        return replace(client, test=client.validation)
    train, n = client.train, len(client.train)
    count = min(max(1, round(TUNING_SHARE * n)), n - 1)
    generator = torch_generator(seed, "sweep", client.id)
    if train.block is not None:
        held = draw_blocks(train.block, count, generator)
        rows = (~held).nonzero()[:, 0], held.nonzero()[:, 0]
    else:
        order = torch.randperm(n, generator=generator)
        rows = order[: n - count].sort().values, order[n - count :]
    kept, judged = map(train.take, rows)
    return replace(client, train=kept, validation=judged, test=judged)


def _with_each(federation: Federation, change: Callable[[Client], Client]) -> Federation:
    """The federation with every client changed, in all its phases; one that stays the same is changed once."""
    if not isinstance(federation, ChangingFederation):
        return federation.with_clients([change(client) for client in federation])
    changed: dict[int, Client] = {}
    phases = {}
    for start, phase in federation.phases.items():
        for client in phase:
            if id(client) not in changed:
                changed[id(client)] = change(client)
        phases[start] = phase.with_clients([changed[id(client)] for client in phase])
    return ChangingFederation(phases)


def hold_out_of(client: Client, fraction: float, seed: int) -> Client:
    """One client with a fraction of its training samples as validation data."""
    train = client.train
    n = len(train)
    count = min(max(1, round(fraction * n)), n - 1)
    if count == 0:
        return client
    generator = torch_generator(seed, "validation", client.id)
    if train.block is None and train.x.nbytes > ON_DISK_BYTES:
        kept, held = train.take(slice(n - count)), train.take(slice(n - count, None))
    else:
        drawn = _drawn(train.y, count, generator) if train.block is None else draw_blocks(train.block, count, generator)
        kept, held = train.take(~drawn), train.take(drawn)
    old = client.validation
    if len(old):
        held = Split(torch.cat([old.x, held.x]), torch.cat([old.y, held.y]))
    return replace(client, train=kept, validation=held)


def _drawn(targets: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Which of the samples (n,) are `count` at equal steps through a random order that is sorted by class."""
    n = len(targets)
    order = torch.randperm(n, generator=generator)
    if targets.ndim == 1 and not targets.is_floating_point():
        order = order[torch.sort(targets[order], stable=True).indices]
    steps = (torch.arange(count, dtype=torch.float64) + 0.5) * (n / count)
    drawn = torch.zeros(n, dtype=torch.bool)
    drawn[order[steps.long()]] = True
    return drawn
