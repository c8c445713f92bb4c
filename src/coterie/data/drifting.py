"""Federations whose groups change with time: they exchange their concepts, take them back, and a new one appears."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from coterie.data import shifts
from coterie.data.builders import BuildOptions
from coterie.data.combined import combined
from coterie.errors import ConfigError
from coterie.federation import ChangingFederation, Client, Federation
from coterie.randomness import derive

EXCHANGE, RETURN, NEW_GROUP = 31, 61, 91
"""The rounds from which a drifting federation is another."""


def drifting(source: str) -> Callable[[BuildOptions], Federation]:
    """Groups with a label permutation each. From round 31 on the first two have each other's, from 61 on their own
    again, and from 91 on every second client of the first has one that no client had."""

    def make(order: BuildOptions) -> Federation:
        if order.groups < 2 or order.clients < 2 * order.groups:
            raise ConfigError(
                f"clients={order.clients}, groups={order.groups}: {order.name} needs 2 groups of 2 clients or more"
            )
        plain = combined(f"{source}:none")(order)
        tables = shifts.group_permutations(plain.classes, order.groups + 1, derive(order.seed, "permutations"))
        own = {client.id: client.group or 0 for client in plain}
        others = {0: 1, 1: 0}
        exchanged = {client: others.get(group, group) for client, group in own.items()}
        first = [client for client, group in own.items() if group == 0]
        made: dict[tuple[str, int], Client] = {}  # a client that has had a concept before is the same object again

        def phase(concept_of: dict[str, int]) -> Federation:
            for client in plain:
                concept = concept_of[client.id]
                if (client.id, concept) not in made:
                    relabel = partial(shifts.permute_labels, permutation=tables[concept])
                    made[client.id, concept] = replace(client.with_targets(relabel), group=concept)
            return plain.with_clients([made[client, concept_of[client]] for client in plain.ids])

        return ChangingFederation(
            {
                1: phase(own),
                EXCHANGE: phase(exchanged),
                RETURN: phase(own),
                NEW_GROUP: phase(own | dict.fromkeys(first[1::2], order.groups)),
            }
        )

    return make
