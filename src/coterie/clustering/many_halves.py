"""Who differs from whom among very many clients: `half_vectors` from the half-updates themselves, not their products.

All functions take the half-updates of M clients, or sketches of them, as rows a_1 … a_M, b_1 … b_M, `(2M, w)`. No
(2M, 2M) products are formed: tests and eigenvectors are computed in the w numbers, and cuts from the distances of all
clients to LANDMARKS of them. With up to LANDMARKS clients the cuts are those of `half_vectors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from coterie.clustering.half_vectors import (
    CLEARANCE,
    DRAWS,
    ENOUGH,
    TINY,
    Bools,
    Floats,
    Ints,
    average_linkage,
    is_as_high,
)

Rows = npt.NDArray[np.float32]
Score = Callable[[Rows, Rows], float]

LANDMARKS = 2048
"""Clients that all are compared with when clients are cut in two, drawn at random."""
TESTED = 128
"""Directions in which halves are matched: those in which all halves together spread most."""
SPARED = 0.01
"""The part of very many clients that may lie near the other side of a clear cut: among so many some always do, and in a
split their own losses decide where they go."""
AT_ONCE = 4096
"""Rows that are worked on together; it bounds memory."""


def unit_rows(rows: Rows) -> Rows:
    """The rows with length one; a zero row stays zero."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return np.asarray(rows * inverse[:, None].astype(np.float32))


def tested_directions(halves: Rows) -> Rows:
    """Half-updates `(2M, w)` of unit length without their common direction, in the TESTED directions at most.

    Both p-values compare the true matching of halves with random ones. The directions do not depend on which halves
    belong together, so the p-values stay exact; a test ends once ENOUGH matchings are as good as the true one.
    """
    rows = _without_common(unit_rows(halves))
    if rows.shape[1] <= TESTED:
        return rows
    directions = np.linalg.eigh(_inner(rows))[1][:, -TESTED:]
    return np.asarray(rows @ directions.astype(np.float32))


def p_value(tested: Rows, draws: int = DRAWS, seed: int = 0) -> float:
    """As `half_vectors.p_value`, of what `tested_directions` gives."""
    return _p_value(tested, _likeness, draws, seed)


def group_p_value(tested: Rows, draws: int = DRAWS, seed: int = 0) -> float:
    """As `half_vectors.group_p_value`, of what `tested_directions` gives."""
    return _p_value(tested, _agreement, draws, seed)


def _p_value(halves: Rows, score: Score, draws: int, seed: int) -> float:
    """The p-value of the true matching's score among random ones, Besag and Clifford's (1991) sequential one."""
    if len(halves) < 4:
        return 1.0
    clients, hits, generator = len(halves) // 2, 1, np.random.default_rng(seed)
    true = score(halves[:clients], halves[clients:])
    for tried in range(2, draws + 2):
        order = generator.permutation(2 * clients)
        hits += is_as_high(score(halves[order[:clients]], halves[order[clients:]]), true)
        if hits == ENOUGH:
            return hits / tried
    return hits / (draws + 1)


def _likeness(first: Rows, second: Rows) -> float:
    """The sum of the products inside the pairs."""
    return float(np.einsum("ij,ij->", first, second, dtype=np.float64))


def _agreement(first: Rows, second: Rows) -> float:
    """The sum over pairs of clients of the products of their halves' products, as in `half_vectors`.

    Σ (x_i·y_j)(x_j·y_i) over all i and j is Σ C_pq C_qp, and Σ (x_i·x_j)(y_i·y_j) is Σ C_pq², with C = XᵀY.
    """
    c = (first.T @ second).astype(np.float64)
    inside, lengths = _products(first, second), _products(first, first) * _products(second, second)
    return float((c * c.T).sum() + (c * c).sum() - (inside @ inside) - lengths.sum())


def _products(first: Rows, second: Rows) -> Floats:
    return np.asarray(np.einsum("ij,ij->i", first, second, dtype=np.float64))


def _without_common(units: Rows) -> Rows:
    """Unit rows after their common direction, that of their mean, is projected out."""
    mean = units.mean(axis=0, dtype=np.float64)
    length = float(mean @ mean)
    if length <= TINY:
        return units
    along = (units @ mean / length).astype(np.float32)
    return unit_rows(units - np.outer(along, mean.astype(np.float32)))


def _inner(rows: Rows) -> Floats:
    """RᵀR of rows `(n, w)`, summed in float64."""
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for at in _blocks(len(rows)):
        total += rows[at].T @ rows[at]
    return total


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + AT_ONCE) for start in range(0, rows, AT_ONCE))


def find_sides(halves: Rows, weights: Floats) -> Bools | None:
    """The split in two, as the clients (M,) on the second side; None where every cut may run through a group.

    halves: `(2M, w)`, which count with unit length; weights: (M,). As in `half_vectors.find_sides` clients are placed
    in the directions that rise above noise and cut by average linkage; if that is not clear, their cosines are cut.
    """
    clients, share = len(weights), weights / weights.sum()
    first, second = (_centred(unit_rows(half), share) for half in np.split(halves, 2))
    lengths = np.sqrt(np.sqrt(_products(first, first) * _products(second, second)))
    inverse = np.divide(1.0, lengths, out=np.zeros(clients), where=lengths > 0).astype(np.float32)[:, None]
    places = _above_noise(first * inverse, second * inverse)
    sides = None if places is None else _cut_places(places)
    return _cut_cosines(unit_rows(first + second)) if sides is None else sides


def _centred(rows: Rows, share: Floats) -> Rows:
    """The rows without their weighted mean."""
    return np.asarray(rows - (share @ rows).astype(np.float32))


def _above_noise(first: Rows, second: Rows) -> Rows | None:
    """The clients' places `(M, k)` in the directions of (ABᵀ + BAᵀ)/2 that rise above noise; None where none does.

    With U = (A + B, A − B)/2 it is U J Uᵀ, J = diag(1, −1): its eigenvectors are those of a matrix (2w, 2w) times U.
    Noise has eigenvalues symmetric around zero, so the lowest shows how far it can reach.
    """
    width = first.shape[1]
    inner = np.zeros((2 * width, 2 * width))
    for at in _blocks(len(first)):
        rows = np.concatenate([first[at] + second[at], first[at] - second[at]], axis=1) / 2
        inner += rows.T @ rows
    spread, turn = np.linalg.eigh(inner)
    held = spread > max(float(spread[-1]), TINY) * 1e-10
    root = turn[:, held] * np.sqrt(spread[held])
    signs = np.repeat([1.0, -1.0], width)[:, None]
    values, vectors = np.linalg.eigh(root.T @ (signs * root))
    keep = values > max(-values[0], 1e-9) if len(values) else np.zeros(0, dtype=bool)
    if not keep.any():
        return None
    map_ = (turn[:, held] / np.sqrt(spread[held])) @ (vectors[:, keep] * np.sqrt(values[keep])) / 2
    up, down = map_[:width].astype(np.float32), map_[width:].astype(np.float32)
    return np.asarray((first + second) @ up + (first - second) @ down)


def landmarks(clients: int) -> Ints:
    """The clients that all are compared with, in order: all, or LANDMARKS drawn at random."""
    if clients <= LANDMARKS:
        return np.arange(clients)
    return np.sort(np.random.default_rng(0).choice(clients, LANDMARKS, replace=False))


def _cut_places(places: Rows) -> Bools | None:
    """Average linkage in two by the distances of places `(M, k)`, unless many across are near each other."""
    from scipy.spatial.distance import cdist

    marks = landmarks(len(places))

    def distances(at: slice | Ints) -> Floats:
        return np.asarray(cdist(places[at], places[marks]))

    second = _cut(distances, marks, len(places))
    if not second.any():
        return None
    nearest, total, count = np.empty(len(places)), 0.0, 0
    for at in _blocks(len(places)):
        found = distances(at)
        for side in (False, True):
            across = found[second[at] == side][:, second[marks] != side]
            spared = int(SPARED * across.shape[1])
            nearest[at][second[at] == side] = np.partition(across, spared, axis=1)[:, spared]
            total, count = total + float(across.sum()), count + across.size
    least = float(np.sort(nearest)[int(SPARED * len(places))])
    return second if least >= CLEARANCE * total / count > 0 else None


def _cut_cosines(units: Rows) -> Bools | None:
    """Average linkage in two by the cosines of unit rows `(M, w)`, unless many are torn from those most like them."""
    marks = landmarks(len(units))

    def cosines(at: slice | Ints) -> Floats:
        return np.asarray(units[at] @ units[marks].T, dtype=np.float64)

    second = _cut(lambda at: np.maximum(1.0 - cosines(at), 0.0), marks, len(units))
    if not second.any():
        return None
    within, across = np.empty(len(units)), np.empty(len(units))
    for at in _blocks(len(units)):
        found, together = cosines(at), second[at, None] == second[marks]
        itself = np.arange(len(units))[at, None] == marks
        within[at] = np.where(together & ~itself, found, -np.inf).max(1)
        across[at] = np.where(together, -np.inf, found).max(1)
    # A client that has nobody like it anywhere is not torn from anybody.
    close = CLEARANCE * np.median(np.maximum(within, across))
    torn = (across > within) & (across > close)
    return None if int(torn.sum()) > SPARED * len(units) else second


def _cut(distances: Callable[[slice | Ints], Floats], marks: Ints, clients: int) -> Bools:
    """The landmarks cut in two by average linkage; the others go to the side that is nearer on average.

    `distances(at)` are those of some clients to the landmarks. Client 0 is never on the second side.
    """
    sides = average_linkage(distances(marks))
    second = np.zeros(clients, dtype=bool)
    if sides.any():
        for at in _blocks(clients):
            found = distances(at)
            second[at] = found[:, sides].mean(1) < found[:, ~sides].mean(1)
    second[marks] = sides
    return ~second if second[0] else second


def noise_of(halves: Rows) -> float:
    """γ̂ of half-updates `(2M, w)`: the median over clients of ‖a − b‖ / ‖a + b‖."""
    first, second = np.split(halves, 2)
    apart, total = first - second, first + second
    squares, whole = _products(apart, apart), _products(total, total)
    return float(np.median(np.sqrt(np.divide(squares, whole, out=np.full_like(whole, np.inf), where=whole > 0))))


def alpha_cross_max(halves: Rows, second: Bools) -> float:
    """The largest cosine of two clients' updates a + b across the split, one of them a landmark."""
    units = unit_rows(halves[: len(second)] + halves[len(second) :])
    marks = landmarks(len(units))
    highest = -1.0
    for at in _blocks(len(units)):
        across = (units[at] @ units[marks].T)[second[at, None] != second[marks]]
        highest = max(highest, float(across.max(initial=-1.0)))
    return highest
