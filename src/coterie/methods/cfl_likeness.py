"""How alike the members of a CFL cluster are: by products of their half-updates or, of very many, by the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.clustering import gamma_criterion, half_vectors, many_halves
from coterie.clustering.half_vectors import Bools, Floats
from coterie.clustering.many_halves import Rows

MANY = 1000
"""Members of a cluster up to which all products of their half-updates, (2M)², are formed and kept."""
FEW = 250
"""Members of a side of a larger cluster up to which they are."""


class Likeness(NamedTuple):
    """What half-updates say of some members."""

    p_value: float
    """Of "one distribution for all"."""
    group_p_value: float
    """The same by a score for groups; not asked where `p_value` is small enough."""
    second: Bools | None
    """The members on the second side of the clear split, if there is one."""
    separation: float
    """sqrt((1 − α_cross_max)/2) of the two sides, eq. 36; NaN without."""
    noise: float
    """γ̂, the median noise of the members' updates."""


def by_products(gram: Floats, parts: Floats, weights: Floats, significant: float) -> Likeness:
    """From the inner products `gram (2M, 2M)` at one model, and the cosines `parts (P, 2M, 2M)` of the last checks.

    weights: (M,). A p-value up to `significant` needs no second test.
    """
    scores = half_vectors.part_scores(parts)
    recent = half_vectors.weighted_cosines(parts, scores[:, 0])
    second = half_vectors.find_sides(
        half_vectors.cross_products(recent, weights), half_vectors.cosines_of_clients(recent, weights)
    )
    own = half_vectors.p_value_of(scores)
    return Likeness(
        own,
        own if own <= significant else half_vectors.group_p_value(parts[0]),
        second,
        np.nan if second is None else gamma_criterion(half_vectors.alpha_cross_max(gram, second)),
        half_vectors.noise_of(gram),
    )


def by_vectors(halves: Rows, recent: Rows, weights: Floats, significant: float) -> Likeness:
    """The same from the half-updates `halves (2M, w)`, and those of the last checks in one, `recent (2M, w)`."""
    if len(weights) <= FEW:
        gram, cosines = (rows.astype(np.float64) @ rows.T.astype(np.float64) for rows in (halves, recent))
        return by_products(gram, half_vectors.unit_gram(cosines)[None], weights, significant)
    tested = many_halves.tested_directions(recent)
    second = many_halves.find_sides(recent, weights)
    own = many_halves.p_value(tested)
    return Likeness(
        own,
        own if own <= significant else many_halves.group_p_value(tested),
        second,
        np.nan if second is None else gamma_criterion(many_halves.alpha_cross_max(halves, second)),
        many_halves.noise_of(halves),
    )


def laid_end_to_end(checks: Sequence[tuple[Sequence[str], Rows]], clients: Sequence[str]) -> Rows:
    """The clients' half-updates of several checks in one vector each, of unit length and the width of the last check's.

    The products of such vectors are mean cosines over the checks. To keep the width, the vectors of a check are added
    to those of the others with their numbers in a random order and with random signs. `checks` holds the clients of
    each, and their half-updates `(2M, w)`; one of another width is left out.
    """
    place = {client: i for i, client in enumerate(clients)}
    width = checks[-1][1].shape[1]
    total = np.zeros((2 * len(clients), width), dtype=np.float32)
    for number, (seen, halves) in enumerate(reversed(checks)):
        if halves.shape[1] != width:
            continue
        rows = np.array([i for i, c in enumerate(seen) if c in place], dtype=np.int64)
        here = np.array([place[seen[i]] for i in rows], dtype=np.int64)
        units = many_halves.unit_rows(halves)
        if number:
            generator = np.random.default_rng(number)
            signs = 1 - 2 * generator.integers(2, size=width, dtype=np.int8)
            units = units[:, generator.permutation(width)] * signs.astype(np.float32)
        total[np.concatenate([here, here + len(clients)])] += units[np.concatenate([rows, rows + len(seen)])]
    return many_halves.unit_rows(total)
