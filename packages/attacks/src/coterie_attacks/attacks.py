"""Attacks by name: what hostile clients do to their data, their updates, and what they claim.

Beside them stands the federation without the hostile clients: no rule can give back what their data was worth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.errors import ConfigError, did_you_mean
from coterie.federation import Client, Federation, Split
from coterie.randomness import numpy_generator
from coterie_attacks import crafting
from coterie_attacks.claims import Claims, FallingLoss, ForcedSplit, Seeding, Veto
from coterie_attacks.crafting import Scene

CLAIM = 2**40
"""Samples that a liar claims."""


@dataclass(frozen=True)
class Attack:
    """What hostile clients do."""

    summary: str
    craft: Callable[[Scene], Tensor] | None = None
    """The update that all of them send in a cluster; None: the one that their data gives."""
    poison: Callable[[Split, int], Split] | None = None
    """What they do to their training data, given the number of classes."""
    claims: Callable[[], Claims] | None = None
    """What they claim in answer to other tasks than training."""
    samples: int | None = None
    """How many samples they claim."""
    together: bool = False
    """Whether they are of one group and, where clients choose, claim to choose the same cluster."""
    from_share: float = 0.0
    """The share of the rounds in which they are honest first."""
    centroids: bool = False
    """Whether they choose FLT's centroids: half of one client's and half of another's, far apart."""
    absent: bool = False
    """Whether they are not there at all."""


def false_labels(data: Split, classes: int) -> Split:
    """Label c becomes classes − 1 − c."""
    return Split(data.x, classes - 1 - data.y)


def with_trigger(x: Tensor) -> Tensor:
    """Inputs `(n, …)` with the mark of the backdoor: the last three numbers at the largest value there is."""
    marked = x.clone()
    marked.flatten(1)[:, -3:] = x.max() if len(x) else 1.0
    return marked


def backdoor(data: Split, classes: int) -> Split:
    """Half of the samples get the trigger and label 0."""
    half = len(data) // 2
    x, y = data.x.clone(), data.y.clone()
    x[:half] = with_trigger(x)[:half]
    y[:half] = 0
    return Split(x, y)


ATTACKS: dict[str, Attack] = {
    "none": Attack("no hostile client: what the rule itself costs"),
    "absent": Attack("the hostile clients are not there: what the honest lack of their data", absent=True),
    "scale": Attack("updates 100 times too long", craft=lambda scene: 100 * scene.own),
    "sign-flip": Attack("updates turned around, 10 times too long", craft=lambda scene: -10 * scene.own),
    "sample-count": Attack("turned around, 2^40 samples claimed", craft=lambda scene: -scene.own, samples=CLAIM),
    "alie": Attack("the honest mean moved along its deviations", craft=crafting.little_is_enough, together=True),
    "ipm": Attack("a multiple of the honest mean", craft=crafting.inner_product, together=True),
    "min-max": Attack("no farther from any honest update than these are", craft=crafting.min_max, together=True),
    "min-sum": Attack("no farther from all honest updates than one is", craft=crafting.min_sum, together=True),
    "mimic": Attack("all copy one honest client", craft=crafting.mimic, together=True),
    "orthogonal": Attack("towards rolled outputs, across the honest mean, a falling loss claimed",
                         craft=crafting.orthogonal, claims=FallingLoss, together=True),
    "fixed": Attack("a drawn direction in all rounds, also with the honest mean", craft=crafting.fixed, together=True),
    "sleeper": Attack("honest for half of the rounds, then ipm", craft=crafting.inner_product, together=True,
                      from_share=0.5),
    "label-flip": Attack("false labels, aimed at one cluster", poison=false_labels, together=True),
    "backdoor": Attack("a mark in the input means class 0", poison=backdoor, craft=crafting.own_scaled, together=True),
    "seeding": Attack("false labels, and losses that make IFCA seed a model from them", poison=false_labels,
                      claims=Seeding),
    "veto": Attack("honest but in CFL's checks: a random half-update, and every split is claimed to hurt", claims=Veto),
    "forced-split": Attack("honest but in CFL's checks: half-updates turned around, every split is claimed to help",
                           claims=ForcedSplit),
    "centroids": Attack("FLT's centroids are chosen to join two families; then ipm", craft=crafting.inner_product,
                        centroids=True),
}  # fmt: skip


def find_attack(name: str) -> Attack:
    """The attack of that name, or a ConfigError with a suggestion."""
    if name not in ATTACKS:
        raise ConfigError(f"unknown attack {name!r}: {did_you_mean(name, ATTACKS)}")
    return ATTACKS[name]


def choose_hostile(federation: Federation, count: int, seed: int, attack: Attack | None = None) -> tuple[str, ...]:
    """`count` clients drawn at random, in the federation's order; of one group as far as it has that many, if asked."""
    if not 0 <= count < len(federation):
        raise ConfigError(f"hostile={count} of {len(federation)} clients: at least one must be honest")
    order = numpy_generator(seed, "hostile").permutation(len(federation)).tolist()
    if attack is not None and attack.together:
        groups = [client.group for client in federation]
        first = groups[order[0]]
        order.sort(key=lambda i: groups[i] != first)
    drawn = set(order[:count])
    return tuple(client for i, client in enumerate(federation.ids) if i in drawn)


def poisoned(federation: Federation, attack: Attack, hostile: Sequence[str]) -> Federation:
    """The federation with the hostile clients' training data as the attack wants it."""
    if attack.poison is None or not hostile:
        return federation
    bad = set(hostile)
    clients: list[Client] = [
        replace(client, train=attack.poison(client.train, federation.classes)) if client.id in bad else client
        for client in federation
    ]
    return Federation(clients, federation.classes, federation.name)


def chosen_centroids(honest: Sequence[Tensor]) -> Tensor:
    """Centroids `(k, e)`: half of each of the two honest clients whose mean centroids are farthest apart."""
    means = torch.stack([own.nanmean(0) for own in honest])
    first, second = divmod(int(torch.cdist(means, means).argmax()), len(honest))
    half = len(honest[first]) // 2
    return torch.cat([honest[first][: len(honest[first]) - half], honest[second][:half]])
