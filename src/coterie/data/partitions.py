"""Who holds what: each function deals sample indices to clients, as a pure function of its arguments and the seed.

Every partition is a list with one int64 array of indices per client; the arrays are disjoint and none is empty.
What cannot be dealt is a DataError that says what to change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from coterie.data.allocation import deal, largest_remainder, within_supply
from coterie.errors import DataError
from coterie.randomness import derive, numpy_generator

IntArray = npt.NDArray[np.int64]
Partition = list[IntArray]
Sizes = int | IntArray
"""Samples per client: the same number for all, or one each."""
SizeLaw = Callable[[int, float, np.random.Generator], npt.NDArray[np.float64]]
"""What gives clients their shares of all samples, by their number and how far sizes spread."""

DIRICHLET_TRIES = 50


def _lognormal(logarithms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Numbers in proportion to those with these logarithms, the largest 1, so that none overflows."""
    scaled: npt.NDArray[np.float64] = np.exp(logarithms - logarithms.max())
    return scaled


SIZE_LAWS: dict[str, SizeLaw] = {
    "equal": lambda clients, _, __: np.ones(clients),
    "zipf": lambda clients, exponent, _: np.arange(1, clients + 1, dtype=np.float64) ** -exponent,
    "lognormal": lambda clients, sigma, generator: _lognormal(sigma * generator.standard_normal(clients)),
}


def iid(n: int, clients: int, samples: Sizes | None = None, seed: int = 0) -> Partition:
    """A random deal of `samples` indices per client; of all n, in sizes that differ by at most one, when None."""
    _check_room(n, clients, 1 if samples is None else samples)
    order = numpy_generator(seed, "iid").permutation(n)
    if samples is None:
        return [np.sort(part) for part in np.array_split(order, clients)]
    ends = np.cumsum(np.broadcast_to(samples, clients))
    return [np.sort(part) for part in np.split(order[: ends[-1]], ends[:-1])]


def sizes_by_law(
    law: SizeLaw, spread: float, n: int, clients: int, samples: int | None, minimum: int, seed: int
) -> IntArray:
    """Client sizes in a random order: `minimum` each, and shares of the rest by the law: (clients,).

    They sum to `clients * samples`, or to n when `samples` is None.
    """
    _check_room(n, clients, minimum if samples is None else samples)
    total = n if samples is None else clients * samples
    if total < clients * minimum:
        raise DataError(f"samples={samples} per client: a client holds at least {minimum}: ask for {minimum} or more")
    generator = numpy_generator(seed, "sizes")
    weights = law(clients, spread, generator)
    rest = total - clients * minimum
    shares: IntArray = largest_remainder(weights[None, :] / weights.sum() * rest, np.array([rest]))[0]
    return generator.permutation(minimum + shares)


def power_law_sizes(total: int, clients: int, minimum: int, exponent: float) -> IntArray:
    """Client sizes alpha + exp(beta * m^delta), m = 1..clients, with beta such that they sum to `total`: (clients,).

    FLT, appendix, Algorithm 4: `minimum` is alpha, `exponent` is delta. Rounded by largest remainder, so that the sum
    is exact, no client has fewer than `minimum`, and sizes never cross the order of the law.
    """
    if minimum < 1 or exponent < 0:
        raise DataError(f"minimum={minimum} and exponent={exponent}: give a minimum of at least 1 and an exponent >= 0")
    _check_room(total, clients, minimum)
    spread = total - clients * minimum
    if spread == 0:
        return np.full(clients, minimum, dtype=np.int64)
    powers = np.arange(1, clients + 1, dtype=np.float64) ** exponent

    # At `low` every term is at most spread / clients, at `high` the last one alone is spread: beta lies between.
    low, high = min(0.0, np.log(spread / clients)), np.log(spread) / powers[-1]
    if exponent == 0:
        beta = np.log(spread / clients)
    else:
        from scipy.optimize import brentq

        beta = brentq(lambda b: float(np.exp(b * powers).sum() - spread), low - 1e-9, high + 1e-9, xtol=1e-14)
    spread_out: IntArray = largest_remainder(np.exp(beta * powers)[None, :], np.array([spread]))[0]
    return spread_out + minimum


def structured_power_law(
    labels: npt.ArrayLike,
    class_sets: Sequence[Sequence[int]],
    group_of: Sequence[int],
    minimum: int,
    exponent: float,
    seed: int,
) -> Partition:
    """FLT's structured federation (Algorithm 4): the samples of a group's classes, by power law over its clients.

    `labels: (n,)`; `class_sets[g]` are group g's classes, disjoint between groups; `group_of[m]` is client m's group.
    """
    labels = np.asarray(labels)
    _check_groups(class_sets, group_of)
    flat = [c for classes in class_sets for c in classes]
    if len(set(flat)) < len(flat):
        raise DataError("power-law groups must not share classes: give disjoint class sets")
    parts: Partition = [np.empty(0, dtype=np.int64)] * len(group_of)
    for group, classes in enumerate(class_sets):
        members = [m for m, g in enumerate(group_of) if g == group]
        if not members:
            continue
        held = np.flatnonzero(np.isin(labels, classes))
        sizes = power_law_sizes(len(held), len(members), minimum, exponent)
        order = numpy_generator(derive(seed, "structured", group), "power-law").permutation(held)
        for m, part in zip(members, np.split(order, np.cumsum(sizes)[:-1]), strict=True):
            parts[m] = np.sort(part)
    return parts


def dirichlet(
    labels: npt.ArrayLike,
    clients: int,
    alpha: float | Sequence[float],
    seed: int = 0,
    samples_per_client: Sizes | None = None,
    minimum: int = 1,
) -> Partition:
    """Label skew by Dirichlet(alpha): small alpha, few classes per client; large alpha, nearly iid.

    One alpha and no size: each class is shared out in Dirichlet(alpha) proportions; every sample is dealt and sizes
    vary, each at least `minimum`. With `samples_per_client`, or with one alpha per client (sizes then equal to within
    one): client m's class proportions are Dirichlet(alpha_m), scaled down where clients want more of a class than
    there is. `labels: (n,)`.
    """
    labels = np.asarray(labels)
    alphas = np.asarray(alpha, dtype=np.float64)
    if (alphas <= 0).any() or not np.isfinite(alphas).all() or alphas.shape not in ((), (clients,)):
        raise DataError(f"alpha={alpha}: give one positive number, or one for each of the {clients} clients")
    if samples_per_client is None and alphas.ndim == 0:
        return _dirichlet_by_class(labels, clients, float(alphas), seed, minimum)
    _check_room(len(labels), clients, minimum if samples_per_client is None else samples_per_client)
    generator = numpy_generator(seed, "dirichlet")
    supply = np.unique(labels, return_counts=True)[1]
    rows = np.stack([generator.dirichlet(np.full(len(supply), a)) for a in np.broadcast_to(alphas, clients)])
    sizes = np.full(clients, len(labels) // clients if samples_per_client is None else samples_per_client)
    if samples_per_client is None:
        sizes[: len(labels) % clients] += 1
    return deal(labels, within_supply(rows, sizes, supply), seed)


def classes_per_client(
    labels: npt.ArrayLike, clients: int, c: int, seed: int = 0, samples: Sizes | None = None
) -> Partition:
    """Each client holds exactly c classes, each class being held by equally many clients to within one.

    A class's samples are shared equally by its holders; with `samples`, each client holds that many in all.
    """
    labels = np.asarray(labels)
    classes = np.unique(labels)
    if not 1 <= c <= len(classes):
        raise DataError(f"{c} classes per client, but the data has {len(classes)}: ask for 1..{len(classes)}")
    _check_room(len(labels), clients, c)
    generator = numpy_generator(seed, "classes-per-client")
    holders = np.zeros(len(classes), dtype=np.int64)
    sets = []
    for _ in range(clients):
        # The least-held classes first, ties at random: fixed consecutive blocks would make hidden groups of clients.
        chosen = np.lexsort((generator.random(len(classes)), holders))[:c]
        holders[chosen] += 1
        sets.append([int(k) for k in classes[chosen]])
    return by_group_classes(labels, sets, list(range(clients)), samples, seed)


def by_group_classes(
    labels: npt.ArrayLike,
    class_sets: Sequence[Sequence[int]],
    group_of: Sequence[int],
    samples: Sizes | None = None,
    seed: int = 0,
) -> Partition:
    """Each client holds samples of its group's classes only; the sets may be disjoint or overlap.

    `labels: (n,)`; `class_sets[g]` are group g's classes; `group_of[m]` is client m's group. Without `samples`, every
    class is shared equally by all clients that may hold it; with it, each client holds that many, spread evenly over
    its classes as far as these last. Every client holds at least one sample of each of its classes.
    """
    labels = np.asarray(labels)
    _check_groups(class_sets, group_of)
    classes, supply = np.unique(labels, return_counts=True)
    unknown = sorted({int(c) for s in class_sets for c in s} - set(classes.tolist()))
    if unknown:
        raise DataError(f"no sample has label {unknown[0]}: take it out of the class sets, or use other data")
    allowed = np.stack([np.isin(classes, class_sets[g]) for g in group_of]).astype(np.float64)
    if samples is None:
        counts = largest_remainder(allowed.T / np.maximum(allowed.sum(axis=0), 1)[:, None] * supply[:, None], supply).T
        counts = np.where(allowed > 0, counts, 0)
    else:
        _check_room(len(labels), len(group_of), samples)
        sizes = np.full(len(group_of), samples)
        counts = within_supply(allowed / allowed.sum(axis=1, keepdims=True), sizes, supply, only_wanted=True)
    short = np.argwhere((allowed > 0) & (counts == 0))
    if len(short):
        client, k = short[0]
        raise DataError(
            f"client {client} gets no sample of class {classes[k]} ({supply[k]} samples, {int(allowed[:, k].sum())} "
            f"clients hold it, {'all' if samples is None else samples} samples per client): use fewer clients or "
            "classes per client, or change the number of samples"
        )
    return deal(labels, counts, seed)


def by_key(keys: npt.ArrayLike, clients: int, minimum: int, seed: int) -> Partition:
    """Each client has the samples of one key (a writer): drawn among keys of `minimum` samples, in order of the key.

    `keys: (n,)`. Client m's key is `keys[part[0]]`.
    """
    keys = np.asarray(keys)
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    enough = np.flatnonzero(counts >= minimum)
    if not 1 <= clients <= len(enough):
        raise DataError(
            f"{clients} clients asked, but {len(enough)} of {len(counts)} keys have at least {minimum} samples: "
            f"ask for 1..{len(enough)} clients, or lower the minimum"
        )
    chosen = np.sort(numpy_generator(seed, "by-key").permutation(enough)[:clients])
    order = np.argsort(inverse, kind="stable").astype(np.int64)
    ends = np.cumsum(counts)
    return [order[ends[k] - counts[k] : ends[k]] for k in chosen]


def _dirichlet_by_class(
    labels: npt.NDArray[np.generic], clients: int, alpha: float, seed: int, minimum: int
) -> Partition:
    """Each class in Dirichlet(alpha) proportions over the clients; too small a client is redrawn, then repaired."""
    _check_room(len(labels), clients, minimum)
    supply = np.unique(labels, return_counts=True)[1]
    for attempt in range(DIRICHLET_TRIES):
        generator = numpy_generator(seed, "dirichlet-by-class", attempt)
        shares = generator.dirichlet(np.full(clients, alpha), size=len(supply))
        counts = largest_remainder(shares * supply[:, None], supply).T
        if counts.sum(axis=1).min() >= minimum:
            break
    while counts.sum(axis=1).min() < minimum:  # each step moves one sample from the largest client to the smallest
        sizes = counts.sum(axis=1)
        rich, poor = int(sizes.argmax()), int(sizes.argmin())
        kind = int(counts[rich].argmax())
        counts[rich, kind] -= 1
        counts[poor, kind] += 1
    return deal(labels, counts, seed)


def _check_room(n: int, clients: int, each: Sizes) -> None:
    least = int(np.min(each))
    if clients < 1 or least < 1:
        raise DataError(f"{clients} clients with {least} samples each: ask for at least one of both")
    needed = int(np.broadcast_to(each, clients).sum())
    if needed > n:
        raise DataError(
            f"{clients} clients with at least {least} samples each need {needed} samples, the data has {n}: "
            f"ask for at most {n // least} clients, or at most {n // clients} samples per client"
        )


def _check_groups(class_sets: Sequence[Sequence[int]], group_of: Sequence[int]) -> None:
    if not group_of or min(group_of) < 0 or max(group_of) >= len(class_sets):
        raise DataError(f"groups of clients must be numbers 0..{len(class_sets) - 1}, one for each client")
    empty = [g for g in set(group_of) if not class_sets[g]]
    if empty:
        raise DataError(f"group {empty[0]} has no classes: give it at least one")
