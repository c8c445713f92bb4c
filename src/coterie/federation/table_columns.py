"""A column of all sites' tables: what each site says of it, and how it becomes inputs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.errors import DataError
from coterie.federation.table_files import DECIMAL_COMMA, RawColumn, RawTable
from coterie.federation.table_statistics import (
    CategoryStatistics,
    ColumnStatistics,
    NumberStatistics,
    combine_numbers,
)

DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
NAMED_AT_ONCE = 5
"""Columns that one message names."""


@dataclass(frozen=True)
class Column:
    """How a column becomes inputs: one scaled number, or one input for each category, and one for a missing value."""

    name: str
    kind: Literal["number", "category"]
    missing: bool
    """Whether an input says that the value is missing: values were missing in training."""
    mean: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    """What stands for a missing number: the mean over all sites."""
    categories: tuple[str, ...] = ()
    other: bool = False
    """Whether the rarest categories share an input, which is also that of categories not seen in training."""

    @property
    def features(self) -> list[str]:
        """The names of its inputs."""
        names = [self.name] if self.kind == "number" else [f"{self.name}={value}" for value in self.categories]
        return names + [f"{self.name} other"] * self.other + [f"{self.name} missing"] * self.missing

    def encode(self, column: RawColumn, origin: str) -> np.ndarray:
        """The inputs `(n, features) float64` of a column."""
        encoded = np.zeros((len(column), len(self.features)))
        if self.kind == "number":
            numbers = checked_numbers(column, self.name, origin)
            gone = np.isnan(numbers)
            encoded[:, 0] = (np.where(gone, self.fill, numbers) - self.mean) / self.scale
        else:
            place = {value: i for i, value in enumerate(self.categories)}
            texts = column.texts
            gone = np.array([text is None for text in texts], dtype=bool)
            at = np.array([place.get(text, -1) for text in texts], dtype=np.int64)
            known = np.flatnonzero(at >= 0)
            encoded[known, at[known]] = 1.0
            if self.other:
                encoded[:, len(self.categories)] = (at < 0) & ~gone
        if self.missing:
            encoded[:, -1] = gone
        return encoded


def listed(names: Iterable[str], most: int = NAMED_AT_ONCE) -> str:
    """The first of some names, in quotes."""
    quoted = [repr(name) for name in names]
    return ", ".join(quoted[:most]) + (f" and {len(quoted) - most} more" if len(quoted) > most else "")


def checked_numbers(column: RawColumn, name: str, origin: str) -> np.ndarray:
    """The numbers of a column, finite or missing."""
    if column.numbers is None and column.empty:
        return np.full(len(column), np.nan)
    if column.numbers is None:
        odd = column.odd or next((i + 1, text) for i, text in enumerate(column.texts) if text is not None)
        raise DataError(f"{origin}, column {name!r}: row {odd[0]} holds {odd[1]!r}, which is no number{hint(odd[1])}")
    infinite = np.isinf(column.numbers)
    if infinite.any():
        row = int(np.argmax(infinite)) + 1
        raise DataError(f"{origin}, column {name!r}: row {row} holds an infinite number: correct it or leave it empty")
    return column.numbers


def hint(text: str) -> str:
    """What a text that should be a number may be meant for."""
    if DECIMAL_COMMA.fullmatch(text):
        return ": a decimal comma? write 12.5, or give --decimal , (Python: decimal=','); for thousands write 1234"
    return ""


def describe_site_column(table: RawTable, rows: np.ndarray, name: str, categorical: bool) -> ColumnStatistics:
    """What a site says of a column by its training rows: all that leaves it for the scaling."""
    column, origin = table.columns[name], table.origin
    if not categorical and column.odd is not None:
        row, text = column.odd
        raise DataError(
            f"{origin}, column {name!r}: row {row} holds {text!r} among numbers"
            + (hint(text) or f": correct it or leave it empty, or give --categorical {name}")
        )
    if column.empty:
        return NumberStatistics(0, 0.0, 0.0, len(rows))
    if column.numbers is not None and not categorical:
        return NumberStatistics.of(checked_numbers(column, name, origin)[rows])
    found = CategoryStatistics.of(column.texts[rows])
    if categorical:
        return found
    if all(map(DATE.match, found.counts)):
        raise DataError(
            f"{origin}, column {name!r}: holds dates such as {next(iter(found.counts))!r}: give --drop {name}, or "
            f"write numbers, such as days since an event (or give --categorical {name})"
        )
    if found.names_rows:
        text = next(iter(found.counts))
        raise DataError(
            f"{origin}, column {name!r}: nearly every row has another text, such as {text!r}"
            + (
                hint(text)
                or f": it looks like an identifier, so give --drop {name} (or --categorical {name} if it is none)"
            )
        )
    return found


def fit_column(name: str, found: Mapping[str, ColumnStatistics], max_categories: int) -> Column | None:
    """How a column is encoded, from what the sites said of it; None where no site has a value."""
    known = {origin: part for origin, part in found.items() if not part.empty}
    missing = sum(part.missing for part in found.values()) > 0
    numbers = {origin: part for origin, part in known.items() if isinstance(part, NumberStatistics)}
    categories = {origin: part for origin, part in known.items() if isinstance(part, CategoryStatistics)}
    if numbers and categories:
        texts, figures = next(iter(categories)), next(iter(numbers))
        example = next(iter(categories[texts].counts))
        raise DataError(
            f"{texts}, column {name!r}: holds texts such as {example!r}, but in {figures} numbers"
            + (hint(example) or f": correct it, or give --categorical {name}")
        )
    if numbers:
        whole = combine_numbers(list(numbers.values()), f"column {name!r}")
        return Column(name, "number", missing, whole.mean, whole.scale, whole.mean)
    if not categories:
        return None
    counts: Counter[str] = Counter()
    for part in categories.values():
        counts.update(part.counts)
    if len(counts) <= max_categories:
        return Column(name, "category", missing, categories=tuple(sorted(counts)))
    kept = sorted(counts, key=lambda value: (-counts[value], value))[:max_categories]
    return Column(name, "category", missing, categories=tuple(sorted(kept)), other=True)


def counts_rows(column: RawColumn) -> bool:
    """Whether the numbers count the rows."""
    numbers = column.numbers
    return numbers is not None and len(numbers) > 2 and bool((np.diff(numbers) == 1).all())
