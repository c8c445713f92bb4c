"""Who differs from whom, by the updates that clients make on two halves of their data: tests, similarities and cuts.

All functions take inner products of half-updates, (2M, 2M) for M clients: rows a_1 … a_M, then b_1 … b_M. The noises of
two halves are independent, which is what makes the tests exact and the products free of noise on average.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

DRAWS = 999
"""Random matchings in the permutation test."""
ENOUGH = 60
"""Matchings as good as the true one after which a p-value is surely too large to matter."""
PRODUCTS_AT_ONCE = 2**16
"""Products of cosines that are formed together: a few matchings, because most tests end early."""
FEW = 4
"""Up to so many clients all their matchings, at most 105, are tried."""
MANY = 1000
"""Clients from which on the number of all their matchings is computed by logarithms."""
CLEARANCE = 0.5
"""A cut is clear if no two clients across it are nearer than half the mean distance across."""
TINY = 1e-12
TIE = 0.01
"""What a part counts, beside the square, that speaks against a difference: only enough to order the matchings."""


def unit_gram(gram: Floats) -> Floats:
    """Cosines from inner products (..., n, n); a zero vector has cosine 0 to all, itself included."""
    lengths = np.sqrt(np.maximum(np.diagonal(gram, axis1=-2, axis2=-1), 0.0))
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return np.asarray(gram * inverse[..., :, None] * inverse[..., None, :])


def p_value(parts: Floats, draws: int = DRAWS, seed: int = 0) -> float:
    """The p-value of "one distribution for all": are the halves of one client no more alike than those of any two?

    parts: (P, 2M, 2M) inner products of a_1 … a_M, b_1 … b_M in each of P parts of the vector, or (2M, 2M) in all of
    it. If all clients draw from one distribution, the 2M halves are exchangeable, so the cosines inside the clients
    sum to no more than those inside the pairs of any other matching. The common direction is projected out first:
    clients of different sizes hold more or less of it.
    """
    return p_value_of(part_scores(parts, draws, seed))


def p_value_of(scores: Floats) -> float:
    """The p-value from the parts' scores, as `part_scores` gives them.

    A difference in few labels shows in few parts, so the squares of what speaks for a difference are added up over
    the parts. Every part is matched alike, so the p-value stays exact.
    """
    totals = (np.maximum(scores, 0.0) ** 2 + TIE * scores).sum(axis=0).tolist()
    return sum(is_as_high(total, totals[0]) for total in totals) / len(totals)


def part_scores(parts: Floats, draws: int = DRAWS, seed: int = 0) -> Floats:
    """For each part and each matching, the true one first, the cosines inside the pairs in standard deviations (P, n).

    parts: as in `p_value`. Less than two clients have no other matching.
    """
    parts = parts.reshape(-1, *parts.shape[-2:])
    clients = parts.shape[-1] // 2
    if clients < 2:
        return np.zeros((len(parts), 1))
    first, second = np.split(_orders(clients, draws, seed), 2, axis=1)
    each = np.stack([_without_common(part)[first, second].sum(axis=1) for part in parts])
    spread = each.std(axis=1, keepdims=True)
    above = each - each.mean(axis=1, keepdims=True)
    return np.asarray(np.divide(above, spread, out=np.zeros_like(each), where=spread > TINY))


def weighted_cosines(parts: Floats, scores: Floats) -> Floats:
    """Mean cosines (2M, 2M) over the parts, weighted by how surely the clients differ in each: scores (P,)."""
    weights, cosines = np.maximum(scores, 0.0) ** 2, unit_gram(parts)
    total = float(weights.sum())
    return np.asarray(np.tensordot(weights / total, cosines, 1)) if total > TINY else np.asarray(cosines[0])


def group_p_value(gram: Floats, draws: int = DRAWS, seed: int = 0) -> float:
    """As `p_value`, by another score: how far the two halves of a client agree on whom they are like.

    It sees few large groups that `p_value` hardly sees, because there a wrong partner is often of the right group.
    It is less exact: clients of very different sizes can look like groups.
    """
    if len(gram) < 4:
        return 1.0
    cosines, clients = _without_common(gram), len(gram) // 2
    orders = _orders(clients, draws, seed)
    hits, true = 0, math.nan
    at_once = max(1, PRODUCTS_AT_ONCE // clients**2)
    for start in range(0, len(orders), at_once):
        scores = _agreement(cosines, orders[start : start + at_once])
        true = true if start else scores[0]
        for place, score in enumerate(scores, start + 1):
            hits += is_as_high(score, true)
            if hits == ENOUGH:  # Besag and Clifford's (1991) sequential p-value
                return hits / place
    return hits / len(orders)


def _agreement(cosines: Floats, orders: Ints) -> list[float]:
    """For each matching, orders (n, 2M): the sum over pairs of clients of the products of their halves' cosines."""
    first, second = np.split(orders, 2, axis=1)

    def between(rows: Ints, columns: Ints) -> Floats:
        return np.asarray(cosines[rows[:, :, None], columns[:, None, :]])

    across = between(first, second)
    agree = across * across.transpose(0, 2, 1) + between(first, first) * between(second, second)
    return list((agree.sum((1, 2)) - np.trace(agree, axis1=1, axis2=2)).tolist())


def _without_common(gram: Floats) -> Floats:
    """The cosines of vectors after their common direction, that of the mean of the unit vectors, is projected out."""
    cosines = unit_gram(gram)
    along = cosines.mean(axis=1)
    length = float(along.mean())
    return unit_gram(cosines - np.outer(along, along) / length) if length > TINY else cosines


def _orders(clients: int, draws: int, seed: int) -> Ints:
    """Matchings of 2M halves as orders (n, 2M): place i is matched with place M + i. The first is the true one."""
    true = np.arange(2 * clients)
    if clients <= FEW:
        orders = np.array([[*first, *second] for first, second in _matchings(tuple(range(2 * clients)))])
        at = int((orders == true).all(axis=1).argmax())
        return np.concatenate([orders[at : at + 1], orders[:at], orders[at + 1 :]])
    generator = np.random.default_rng(seed)
    drawn = generator.permuted(np.tile(true, (draws, 1)), axis=1)
    return np.concatenate([true[None], drawn])


def is_as_high(score: float, true: float) -> bool:
    """Is a matching's score that of the true one or more? Equal ones may differ by rounding."""
    return score >= true - 1e-9 * max(1.0, abs(true))


def _matchings(halves: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All perfect matchings, as the first and the second members of the pairs; the true one has them in order."""
    if not halves:
        yield (), ()
        return
    first, *rest = halves
    for i, partner in enumerate(rest):
        for firsts, seconds in _matchings((*rest[:i], *rest[i + 1 :])):
            yield (first, *firsts), (partner, *seconds)


def reachable_p_value(*groups: int) -> float:
    """The p-value of groups of so many clients that are told apart perfectly, but not the clients inside of them."""
    if sum(groups) > MANY:
        return math.exp(sum(map(_log_odd_product, groups)) - _log_odd_product(sum(groups)))
    return math.prod(map(_odd_product, groups)) / _odd_product(sum(groups))


def _odd_product(clients: int) -> int:
    """(2M − 1)!!, the number of matchings of the halves of M clients."""
    return math.prod(range(1, 2 * clients, 2))


def _log_odd_product(clients: int) -> float:
    """log (2M − 1)!! = log (2M)! − log M! − M log 2."""
    return math.lgamma(2 * clients + 1) - math.lgamma(clients + 1) - clients * math.log(2)


def centred(gram: Floats, weights: Floats) -> Floats:
    """Inner products (M, M) of vectors after their weighted mean, weights (M,), is taken off each."""
    off = np.eye(len(weights)) - np.outer(np.ones(len(weights)), weights / weights.sum())
    return np.asarray(off @ gram @ off.T)


def cosines_of_clients(gram: Floats, weights: Floats) -> Floats:
    """Cosines (M, M) of the clients' updates a + b, apart from what they share. gram: (2M, 2M); weights: (M,)."""
    a, b = _halves(len(weights))
    return unit_gram(centred(gram[a, a] + gram[a, b] + gram[b, a] + gram[b, b], weights))


def cross_products(gram: Floats, weights: Floats) -> Floats:
    """How alike clients are apart from what they share, by products of an `a`-half with a `b`-half: (M, M), symmetric.

    The noises of two halves are independent, so noise adds nothing to the mean of any entry, the diagonal included.
    Half-updates count with unit length. gram: (2M, 2M); weights: (M,).
    """
    a, b = _halves(len(weights))
    own = [np.maximum(np.diag(centred(gram[half, half], weights)), 0.0) for half in (a, b)]
    lengths = np.sqrt(np.sqrt(own[0] * own[1]))
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    products = centred(gram[a, b], weights) * np.outer(inverse, inverse)
    return np.asarray((products + products.T) / 2)


def _halves(clients: int) -> tuple[slice, slice]:
    return slice(0, clients), slice(clients, 2 * clients)


def find_sides(products: Floats, cosines: Floats) -> Bools | None:
    """The split in two, as the clients (M,) on the second side; None where every cut may run through a group.

    products, cosines: (M, M), as `cross_products` and `cosines_of_clients` give them. First the
    clients are placed in the directions that rise above noise and cut by average linkage; if that cut is not clear,
    their cosines are cut. The one counts the noise off and serves many small clients; the other loses nothing.
    """
    second = _split_above_noise(products)
    return _split_by_cosines(cosines) if second is None else second


def _split_above_noise(products: Floats) -> Bools | None:
    from scipy.spatial.distance import pdist, squareform

    # Pure noise has eigenvalues that lie symmetrically around zero, so the lowest shows how far noise can reach.
    values, vectors = np.linalg.eigh(products)
    keep = values > max(-values[0], 1e-9)
    if not keep.any():
        return None
    distance = squareform(pdist(vectors[:, keep] * np.sqrt(values[keep])))
    second = average_linkage(distance)
    across = distance[np.ix_(~second, second)]
    return second if across.size and across.min() >= CLEARANCE * across.mean() > 0 else None


def _split_by_cosines(cosines: Floats) -> Bools | None:
    second = average_linkage(np.maximum(1.0 - cosines, 0.0))
    if not second.any():
        return None
    others = np.where(np.eye(len(cosines), dtype=bool), -np.inf, cosines)
    together = second[:, None] == second[None, :]
    within, across = np.where(together, others, -np.inf).max(1), np.where(together, -np.inf, others).max(1)
    # A client that has nobody like it anywhere is not torn from anybody.
    close = CLEARANCE * np.median(np.maximum(within, across))
    return None if ((across > within) & (across > close)).any() else second


def average_linkage(distance: Floats) -> Bools:
    """Cut in two; distance: (M, M), symmetric. Client 0 is never on the second side."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    condensed = squareform(np.where(np.eye(len(distance), dtype=bool), 0.0, distance), checks=False)
    labels = fcluster(linkage(condensed, "average"), 2, "maxclust")
    return np.asarray(labels != labels[0])


def noise_of(gram: Floats) -> float:
    """γ̂: the median over clients of ‖a − b‖ / ‖a + b‖. gram: (2M, 2M). A client that does not move is all noise."""
    a, b = _halves(len(gram) // 2)
    squares, inner = np.diag(gram[a, a]) + np.diag(gram[b, b]), np.diag(gram[a, b])
    total = squares + 2 * inner
    return float(
        np.median(np.sqrt(np.divide(squares - 2 * inner, total, out=np.full_like(total, np.inf), where=total > 0)))
    )


def alpha_cross_max(gram: Floats, second: Bools) -> float:
    """The largest cosine of two clients' updates a + b across the split."""
    a, b = _halves(len(second))
    return float(unit_gram(gram[a, a] + gram[a, b] + gram[b, a] + gram[b, b])[np.ix_(~second, second)].max())
