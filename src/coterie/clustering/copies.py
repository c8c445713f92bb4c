"""Which of very many vectors are copies of others, without the products of all pairs in memory."""

from __future__ import annotations

import numpy as np

from coterie.clustering.half_vectors import Bools, Floats
from coterie.clustering.many_halves import Rows, unit_rows

COPY = 1 - 1e-6
"""The cosine from which on one update is a copy of another."""
ENOUGH = 100
"""Numbers in an update from which on copies are no accident."""
DIRECTIONS = 64
"""Directions in which vectors must be near each other before they are compared as a whole."""
STRIP = 512
"""Vectors that are compared with all before them at once; it bounds memory."""
MANY = 2**16
"""Pairs of a strip that are compared one by one; more are compared in one product."""
ROUNDING = 1e-6
"""What rounding may do to a product of two unit vectors in float32."""


def copied(cosines: Floats, numbers: int) -> Bools:
    """Which updates `(n,)` of so many numbers are multiples of one before them: clients with data of their own do not
    send what another sends. Of few numbers nothing can be told."""
    if numbers < ENOUGH:
        return np.zeros(len(cosines), dtype=bool)
    return np.asarray((np.tril(cosines, -1) > COPY).any(axis=1))


def copies_among_many(rows: Rows) -> Bools:
    """Which vectors `(n, d)` are multiples, by a positive factor, of one before them, as `copied` has it.

    Unit vectors with a cosine above COPY are as near each other in any few orthogonal directions, which is asked first.
    """
    found = np.zeros(len(rows), dtype=bool)
    if rows.shape[1] < ENOUGH:
        return found
    units = unit_rows(rows)
    drawn = np.random.default_rng(0).standard_normal((rows.shape[1], min(DIRECTIONS, rows.shape[1])))
    few = units @ np.linalg.qr(drawn)[0].astype(np.float32)
    squares = np.einsum("ij,ij->i", few, few) / 2 - (1 - COPY + ROUNDING) / 2
    for top in range(0, len(rows), STRIP):
        bottom = min(top + STRIP, len(rows))
        near = few[top:bottom] @ few[:bottom].T >= squares[top:bottom, None] + squares[:bottom]
        own, other = np.nonzero(np.tril(near, top - 1))
        if len(own) > MANY:
            found[top:bottom] = np.tril(units[top:bottom] @ units[:bottom].T > COPY, top - 1).any(axis=1)
            continue
        cosines = np.einsum("ij,ij->i", units[top + own], units[other], dtype=np.float64)
        found[top + own[cosines > COPY]] = True
    return found
