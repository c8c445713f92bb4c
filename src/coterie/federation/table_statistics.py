"""What every site says of its columns, so that a table can be scaled without any row leaving the site.

A site gives, for each column of numbers, how many there are, their mean and the sum of squared deviations from it; for
each column of categories, how often each occurs; and how many values are missing. Sites are combined two by two with
the update of Chan, Golub and LeVeque, which loses no digits where the mean is large beside the deviations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.errors import DataError

IDENTIFIER = 0.9
"""Texts of which more than this share are different name rows, they do not describe them."""
FEWEST_NAMES = 20
"""Of fewer texts it cannot be said whether they repeat."""


@dataclass(frozen=True)
class NumberStatistics:
    """Of a column of numbers: how many, their mean, the sum of squared deviations from it; and the missing ones."""

    count: int
    mean: float
    m2: float
    missing: int

    @classmethod
    def of(cls, values: np.ndarray) -> NumberStatistics:
        """The statistics of values `(n,)`, NaN where one is missing."""
        known = values[~np.isnan(values)]
        if not len(known):
            return cls(0, 0.0, 0.0, len(values))
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(known.mean())
            return cls(len(known), mean, float(np.square(known - mean).sum()), len(values) - len(known))

    @property
    def empty(self) -> bool:
        """Whether there is no value."""
        return self.count == 0

    def __add__(self, other: NumberStatistics) -> NumberStatistics:
        count = self.count + other.count
        if not self.count or not other.count:
            known = self if self.count else other
            return NumberStatistics(count, known.mean, known.m2, self.missing + other.missing)
        apart = other.mean - self.mean
        share = other.count / count
        m2 = self.m2 + other.m2 + apart * apart * self.count * share
        return NumberStatistics(count, self.mean + apart * share, m2, self.missing + other.missing)

    @property
    def scale(self) -> float:
        """The population standard deviation, or 1 where values differ by rounding alone."""
        if not self.count:
            return 1.0
        variance, epsilon = self.m2 / self.count, float(np.finfo(np.float64).eps)
        constant = variance <= self.count * epsilon * variance + (self.count * self.mean * epsilon) ** 2
        return 1.0 if constant else float(np.sqrt(variance))


@dataclass(frozen=True)
class CategoryStatistics:
    """Of a column of categories: how often each occurs; and the missing ones."""

    counts: Mapping[str, int]
    missing: int

    @classmethod
    def of(cls, texts: np.ndarray) -> CategoryStatistics:
        """The statistics of texts `(n,)`, None where one is missing."""
        counts = Counter(texts.tolist())
        missing = counts.pop(None, 0)
        return cls(dict(counts), missing)

    @property
    def empty(self) -> bool:
        """Whether there is no value."""
        return not self.counts

    @property
    def names_rows(self) -> bool:
        """Whether the texts look like identifiers: nearly all are different."""
        total = sum(self.counts.values())
        return total >= FEWEST_NAMES and len(self.counts) > IDENTIFIER * total


ColumnStatistics = NumberStatistics | CategoryStatistics


def combine_numbers(parts: Sequence[NumberStatistics], where: str) -> NumberStatistics:
    """The statistics of all sites' numbers together, combined two by two."""
    level = list(parts)
    while len(level) > 1:
        level = [a + b for a, b in zip(level[::2], level[1::2], strict=False)] + level[len(level) // 2 * 2 :]
    if not np.isfinite([level[0].mean, level[0].m2]).all():
        raise DataError(f"{where}: its numbers are too large to be squared: give them in another unit, or drop it")
    return level[0]
