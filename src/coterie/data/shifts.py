"""What makes groups of clients differ: turned images, swapped or permuted labels. Pure: inputs are left untouched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, permutations
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from coterie.errors import DataError
from coterie.randomness import numpy_generator

Array = TypeVar("Array", npt.NDArray[np.generic], torch.Tensor)
IntArray = npt.NDArray[np.int64]
Shift = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""What a group does to its inputs and labels."""


def unshifted(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels as they are."""
    return x, y


def rotate(x: Array, quarter_turns: int) -> Array:
    """Images `x: (..., H, W)` turned counter-clockwise by `quarter_turns` times 90 degrees, as a new array."""
    if x.ndim < 2 or (quarter_turns % 2 and x.shape[-1] != x.shape[-2]):
        raise DataError(
            f"cannot turn data of shape {tuple(x.shape)} by {90 * quarter_turns} degrees: "
            "give square images (..., H, W), or an even number of quarter turns"
        )
    if isinstance(x, torch.Tensor):
        return torch.rot90(x, quarter_turns, dims=(-2, -1)).contiguous()
    return np.ascontiguousarray(np.rot90(x, quarter_turns, axes=(-2, -1))).copy()


def swap_labels(y: torch.Tensor, a: int, b: int) -> torch.Tensor:
    """Labels `y: (n,)` with every `a` turned into `b` and every `b` into `a`; the others stay."""
    swapped = y.clone()
    swapped[y == a] = b
    swapped[y == b] = a
    return swapped


def permute_labels(y: torch.Tensor, permutation: npt.ArrayLike) -> torch.Tensor:
    """Labels `y: (n,)` with every label c replaced by `permutation[c]`, `permutation: (classes,)`."""
    table = np.asarray(permutation, dtype=np.int64)
    if not np.array_equal(np.sort(table), np.arange(table.size)):
        raise DataError(f"{table.tolist()} is not a permutation: give each of 0..{table.size - 1} exactly once")
    if len(y) and (int(y.min()) < 0 or int(y.max()) >= table.size):
        raise DataError(
            f"labels run from {int(y.min())} to {int(y.max())}, but the permutation covers 0..{table.size - 1}: "
            "give one entry for every class"
        )
    return torch.from_numpy(table)[y.long()].to(y.dtype)


def group_permutations(classes: int, groups: int, seed: int) -> IntArray:
    """Distinct label permutations, one row per group: (groups, classes).

    Up to `classes` groups no two rows agree on any label (the rows come from a shuffled cyclic Latin square), so
    groups conflict on every sample and no model can serve two of them. Beyond that, rows are only distinct.
    """
    limit = math.factorial(classes) if classes <= 8 else 100_000
    if groups < 1 or classes < 1 or groups > limit:
        raise DataError(f"{groups} groups cannot have distinct permutations of {classes} labels: ask for 1..{limit}")
    generator = numpy_generator(seed, "group-permutations")
    symbols, columns, offsets = (generator.permutation(classes) for _ in range(3))
    rows = [tuple(symbols[(offset + columns) % classes].tolist()) for offset in offsets[:groups]]
    rows += islice(_further_permutations(rows, classes, generator), groups - len(rows))
    return np.array(rows, dtype=np.int64)


def _further_permutations(
    known: Sequence[tuple[int, ...]], classes: int, generator: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    """Permutations that are not known yet, in random order, each once."""
    seen = set(known)
    if classes <= 8:
        # So few exist that a random draw could meet the same ones for long: list them all instead.
        everything = list(permutations(range(classes)))
        yield from (row for i in generator.permutation(len(everything)) if (row := everything[i]) not in seen)
        return
    while True:  # at least 9! permutations and at most 100,000 wanted: two draws in three are new
        row = tuple(generator.permutation(classes).tolist())
        if row not in seen:
            seen.add(row)
            yield row


def group_swaps(classes: int, groups: int, seed: int) -> list[tuple[int, int]]:
    """Distinct pairs of labels (a < b), one per group; the first `classes // 2` share no label.

    The pairs are the games of a round-robin tournament between randomly seated labels: every pair is played once,
    and inside a round no player plays twice.
    """
    limit = classes * (classes - 1) // 2
    if groups < 1 or groups > limit:
        raise DataError(f"{groups} groups cannot have distinct pairs out of {classes} labels: ask for 1..{limit}")
    labels = numpy_generator(seed, "group-swaps").permutation(classes).tolist()
    bye = classes  # with an odd number of labels, whoever meets this one sits the round out
    seats = [*labels, bye] if classes % 2 else labels
    pairs: list[tuple[int, int]] = []
    for _ in range(len(seats) - 1):
        games = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        pairs += [(min(game), max(game)) for game in games if bye not in game]
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return pairs[:groups]
