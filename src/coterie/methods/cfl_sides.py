"""Who goes to which side of a CFL split that is decided: members that move, and members that the check did not see."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coterie.methods.cfl_rule import Fork

MOVABLE = 20
"""Samples from which on a member's own loss may move it to the other side: fewer are too noisy."""
MOVING = 0.5
"""How much a member must like the other side's step more to move, in parts of how much that side's members like it;
set on what was torn among federations 8401 to 8700 of the recipe `cfl-grid`."""
NEAREST = 2
"""Members of a side that a member which was not seen is compared with."""


def movers(fork: Fork, preference: Mapping[str, Sequence[float]], samples: Mapping[str, int]) -> set[str]:
    """The members that like the other side's step more, on both halves of their data, and about as much as its own do.

    `preference` says by how much a member likes its own side's step more, for each fork on its way and each half. Of a
    side that still holds several groups many like any other step a little.
    """
    at = 2 * len(fork.name)
    judged = {c for side in fork.sides for c in side}
    liked = {c: ways[at : at + 2] for c, ways in preference.items() if c in judged}
    found: set[str] = set()
    for own, other in zip(fork.sides, fork.sides[::-1], strict=True):
        theirs = [sum(liked[c]) for c in other if c in liked]
        least = MOVING * max(sum(theirs) / len(theirs), 0.0) if theirs else math.inf
        found |= {
            c for c in own if c in liked and samples[c] >= MOVABLE and max(liked[c]) < 0 and -sum(liked[c]) >= least
        }
    return set() if any(found.issuperset(side) for side in fork.sides) else found


def sure_places(preference: Mapping[str, Sequence[float]], samples: Mapping[str, int]) -> dict[str, int]:
    """The side, 0 or 1, whose step clients like more on both halves of their data; `preference` is for side 0's."""
    known = {client: ways for client, ways in preference.items() if samples[client] >= MOVABLE}
    return {client: int(max(ways) < 0) for client, ways in known.items() if min(ways) > 0 or max(ways) < 0}


def completed(
    fork: Fork,
    members: Sequence[str],
    updates: Mapping[str, Tensor],
    moved: set[str],
    placed: Mapping[str, int],
) -> tuple[list[str], list[str]]:
    """Both sides after some have moved to the other, with the members that the rule did not see.

    Those go where they are `placed`, else to the members most like them, else to the larger side; as in the rule, what
    all have in common is taken off first.
    """
    known = [c for side in fork.sides for c in side]
    unit = torch.nn.functional.normalize(torch.stack([updates[c] for c in known]).double(), dim=1)
    common = unit.mean(0)
    centred = torch.nn.functional.normalize(unit - common, dim=1)
    sizes = len(fork.sides[0]), len(fork.sides[1])
    chosen: tuple[list[str], list[str]] = ([], [])
    side_of = {client: digit for digit, side in enumerate(fork.sides) for client in side}
    for client in members:
        if client in side_of:
            place = int((side_of[client] == 1) != (client in moved))
        elif client in placed:
            place = placed[client]
        elif client in updates:
            own = torch.nn.functional.normalize(updates[client].double(), dim=0) - common
            near = [alike.topk(min(NEAREST, len(alike))).values.mean() for alike in (centred @ own).split(sizes)]
            place = int(near[1] > near[0])
        else:
            place = int(sizes[1] > sizes[0])
        chosen[place].append(client)
    return chosen
