"""Integer shares with exact sums, and the deal of samples that follows them: what the partitions are made of."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import DataError
from coterie.randomness import numpy_generator

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

SCALING_STEPS = 200


def largest_remainder(shares: FloatArray, totals: npt.NDArray[np.integer]) -> IntArray:
    """Rounds each row of `shares: (rows, columns)` to integers that sum to `totals: (rows,)`.

    The units left after rounding down go to the largest fractional parts, ties to the later column. A share is moved
    by less than one when its row sums to its total.
    """
    counts = np.floor(shares + 1e-9).astype(np.int64)
    for row, total in enumerate(totals):
        left = int(total) - int(counts[row].sum())
        if left > 0:
            fraction = shares[row] - counts[row]
            order = np.lexsort((-np.arange(len(fraction)), -fraction))
            counts[row] += left // len(fraction)
            counts[row, order[: left % len(fraction)]] += 1
        while left < 0:  # only rounding error can bring a sum of floors above the total
            counts[row, int(counts[row].argmax())] -= 1
            left += 1
    return counts


def within_supply(
    rows: FloatArray, sizes: npt.NDArray[np.integer], supply: npt.NDArray[np.integer], only_wanted: bool = False
) -> IntArray:
    """How many samples of each class each client gets: (clients, classes), rows summing to `sizes`.

    `rows: (clients, classes)` are the wanted proportions, `supply: (classes,)` what there is; sizes must not sum to
    more than the supply. Over-asked classes are scaled down for all clients alike and the difference is spread over
    each client's other classes; what is then still missing is filled from whatever is left, wanted classes first, or
    is a DataError with `only_wanted`.
    """
    wanted = rows * sizes[:, None]
    for _ in range(SCALING_STEPS):
        scale = np.minimum(1.0, supply / np.maximum(wanted.sum(axis=0), 1e-300))
        if scale.min() > 1 - 1e-9:
            break
        wanted = wanted * scale
        # A client with nothing left but over-asked classes keeps asking for them; the filling below ends that.
        wanted = wanted * (sizes / np.maximum(wanted.sum(axis=1), 1e-300))[:, None]
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    for k in np.flatnonzero(counts.sum(axis=0) > supply):
        counts[:, k] = largest_remainder((wanted[:, k] * supply[k] / wanted[:, k].sum())[None, :], supply[k : k + 1])[0]
    left = supply - counts.sum(axis=0)
    # Clients with the fewest classes choose first: they have the fewest ways to be filled.
    for m in np.lexsort((np.arange(len(rows)), (rows > 0).sum(axis=1))):
        while (missing := int(sizes[m] - counts[m].sum())) > 0:
            open_classes = np.flatnonzero((left > 0) & (rows[m] > 0))
            if len(open_classes) == 0:
                if only_wanted:
                    raise DataError(
                        f"client {m} lacks {missing} of {sizes[m]} samples, its classes are used up: "
                        "ask for fewer samples or clients, or give groups more classes"
                    )
                open_classes = np.flatnonzero(left > 0)
            behind = wanted[m, open_classes] - counts[m, open_classes]
            # Ties go to the class with the most left, so that remainders do not all fall on the first class.
            k = open_classes[np.lexsort((-left[open_classes], -np.round(behind, 6)))[0]]
            step = 1 if behind.max() > 0 else max(1, min(missing // len(open_classes), int(left[k])))
            counts[m, k] += step
            left[k] -= step
    return counts


def deal(labels: npt.NDArray[np.generic], counts: IntArray, seed: int) -> list[IntArray]:
    """Sample indices for each client, sorted: `counts: (clients, classes)` of each class, drawn at random.

    `labels: (n,)`; column k of `counts` is the k-th label in sorted order.
    """
    classes = np.unique(labels)
    hands: list[list[IntArray]] = [[] for _ in counts]
    for k, label in enumerate(classes):
        order = numpy_generator(seed, "deal", k).permutation(np.flatnonzero(labels == label))
        for hand, part in zip(hands, np.split(order, np.cumsum(counts[:, k])), strict=False):
            hand.append(part)
    return [np.sort(np.concatenate(hand)).astype(np.int64) for hand in hands]
