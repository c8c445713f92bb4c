"""Federations from tables: columns of numbers and categories, scaled by what all sites say of theirs, no row pooled."""

from __future__ import annotations

import json
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from coterie.errors import ConfigError, DataError, did_you_mean
from coterie.federation.blocks import block_numbers
from coterie.federation.client import PARTS, Client, Split, Splits, entry_of, split_rows
from coterie.federation.labels import encode_column
from coterie.federation.table_columns import Column, counts_rows, describe_site_column, fit_column, listed
from coterie.federation.table_files import RawTable, is_frame, read_frame, read_table
from coterie.federation.table_sites import common_columns
from coterie.federation.table_statistics import ColumnStatistics, NumberStatistics, combine_numbers

FORMAT = 1
MOST_CATEGORIES = 64
"""Categories of a column that get an input of their own; the rarest of more share one."""


@dataclass(frozen=True)
class Table:
    """The preprocessing of a federation of tables, fitted on the training rows of all sites.

    It turns other tables of the same columns into inputs, and class numbers into the labels' names and back.
    `label_names` is empty for regression.
    """

    label: str
    label_names: tuple[str, ...]
    columns: tuple[Column, ...]
    dropped: tuple[str, ...] = ()
    """Columns that are left out wherever they occur."""
    client_column: str | None = None
    decimal: str | None = None
    """The decimal mark of every file, or None: found in each."""
    label_mean: float = 0.0
    label_scale: float = 1.0
    """Mean and deviation of a quantity over the training rows, which it is trained by; `labels` gives it as it is."""

    @property
    def features(self) -> list[str]:
        """The names of the inputs."""
        return [name for column in self.columns for name in column.features]

    def transform(self, data: Any) -> tuple[Tensor, Tensor | None]:
        """The inputs `(n, features) float32` and labels `(n,)` of another table.

        Args:
            data: a CSV or Parquet file, or a data frame, with the columns of training. The label may be missing.

        Returns:
            Inputs, and the labels as class numbers (or float32 quantities), None where there is no label.

        Raises:
            DataError: a column is missing or new, or a value is none of its column's.
        """
        raw = self.read(data)
        return self.inputs(raw), self.labels(raw)

    def read(self, data: Any) -> RawTable:
        """The table in a file or a data frame, as it was given."""
        if isinstance(data, RawTable):
            return data
        if is_frame(data):
            return read_frame(data, "the table", self.decimal)
        return read_table(data, self.decimal)

    def encode(self, raw: RawTable) -> np.ndarray:
        """The inputs `(n, features) float64` of a table."""
        expected = [column.name for column in self.columns]
        ignored = {self.label, self.client_column, *self.dropped}
        extra = [name for name in raw.columns if name not in ignored and name not in expected]
        lacking = [name for name in expected if name not in raw.columns]
        if lacking:
            raise DataError(
                f"{raw.origin}: no column {listed(lacking)}, which there was in training: add it (empty will do)"
            )
        if extra:
            raise DataError(f"{raw.origin}: column {listed(extra)} was not there in training: remove it")
        with np.errstate(over="ignore"):
            return np.hstack([column.encode(raw.columns[column.name], raw.origin) for column in self.columns])

    def inputs(self, raw: RawTable) -> Tensor:
        """The inputs `(n, features) float32` of a table."""
        with np.errstate(over="ignore"):
            inputs = self.encode(raw).astype(np.float32)
        if not np.isfinite(inputs).all():
            row, column = np.argwhere(~np.isfinite(inputs))[0]
            raise DataError(f"{raw.origin}: {self.features[column]!r} in row {row + 1} is too large: correct it")
        return torch.from_numpy(inputs)

    def labels(self, raw: RawTable) -> Tensor | None:
        """The labels of a table, None where it has none."""
        column = raw.columns.get(self.label)
        if column is None or column.empty:
            return None
        return torch.from_numpy(encode_column(column, self.label_names, self.label, raw.origin))

    def to_json(self) -> dict[str, Any]:
        """The table as plain values, without any row of data."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Table:
        """The table that `to_json` has written."""
        given = {key: value for key, value in values.items() if key != "checksum"}  # a run's files have one
        if (stated := given.pop("format", None)) != FORMAT:
            raise DataError(f"the table has format {stated!r}, this version reads {FORMAT}")
        try:
            return _ADAPTER.validate_python(given)
        except ValidationError as problem:
            first = problem.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise DataError(f"not a table as a run keeps it: {where}: {first['msg']}") from problem

    @classmethod
    def load(cls, path: str | Path) -> Table:
        """The table in a run's `table.json`."""
        try:
            values = json.loads(Path(path).read_bytes())
        except (OSError, ValueError, RecursionError) as problem:
            raise DataError(f"{path}: cannot be read ({problem}): give the table.json of a run on tables") from problem
        if not isinstance(values, dict):
            raise DataError(f"{path}: not a table as a run keeps it: give the table.json of a run on tables")
        return cls.from_json(values)


_ADAPTER = TypeAdapter(Table)


@dataclass(frozen=True)
class Site:
    """A client's rows, and which of them are for what."""

    id: str
    raw: RawTable
    rows: Mapping[str, np.ndarray]
    block: Tensor | None = None
    """The block of each row (n,), where a column names it."""


@dataclass(frozen=True)
class SiteReport:
    """All that a site says of its rows for the preprocessing: statistics of its training rows, column by column."""

    origin: str
    columns: Mapping[str, ColumnStatistics]
    label: NumberStatistics | None
    """Of a label that holds numbers."""
    counting: tuple[str, ...] = ()
    """Columns that count the rows."""


def report_site(site: Site, label: str, left_out: Container[str | None], categorical: Container[str]) -> SiteReport:
    """What a site says of the columns that are not left out."""
    raw, rows = site.raw, site.rows["train"]
    names = [name for name in raw.columns if name not in left_out]
    columns = {name: describe_site_column(raw, rows, name, name in categorical) for name in names}
    counting = tuple(name for name in names if counts_rows(raw.columns[name]))
    numbers = raw.columns[label].numbers
    return SiteReport(raw.origin, columns, None if numbers is None else NumberStatistics.of(numbers[rows]), counting)


def fit_table(
    reports: Sequence[SiteReport], unfitted: Table, max_categories: int = MOST_CATEGORIES, *, scale: bool = True
) -> Table:
    """The preprocessing that the sites' reports lead to; `unfitted` has the label, its classes and what is left out."""
    order = common_columns({report.origin: list(report.columns) for report in reports})
    known = {name: {report.origin: report.columns[name] for report in reports} for name in order}
    columns = {name: fit_column(name, parts, max_categories) for name, parts in known.items()}
    fitted = [column for column in columns.values() if column is not None]
    empty = [name for name, column in columns.items() if column is None]
    if empty:
        warnings.warn(f"column {listed(empty)} has no value in any table and is left out", stacklevel=3)
    if not fitted:
        raise DataError(
            f"no column is left beside the label {unfitted.label!r}: give tables with columns to learn from"
        )
    _warn_of_row_numbers(reports, fitted)
    if not scale:
        fitted = [replace(column, mean=0.0, scale=1.0) for column in fitted]
    table = replace(unfitted, columns=tuple(fitted), dropped=(*unfitted.dropped, *empty))
    if unfitted.label_names or not scale:
        return table
    quantities = [report.label for report in reports if report.label is not None]
    whole = combine_numbers(quantities, f"label {unfitted.label!r}")
    return replace(table, label_mean=whole.mean, label_scale=whole.scale)


def check_options(label: str, client_column: str | None, decimal: str | None, max_categories: int) -> None:
    """Refuse options that are out of range, or the same column for two ends."""
    if decimal not in (None, ".", ","):
        raise ConfigError(f"decimal={decimal!r}: expected '.' or ','")
    if max_categories < 1:
        raise ConfigError(f"max_categories={max_categories}: expected 1 or more")
    if label == client_column:
        raise DataError(f"label and client_column are both {label!r}: give two columns")


def site_of(name: str, table: RawTable, blocks: str | None, splits: Splits, seed: int) -> Site:
    """A client's rows, divided; those of one block stay together."""
    block = None
    if blocks is not None:
        texts = table.columns[blocks].texts
        if None in texts:
            row = list(texts).index(None) + 1
            raise DataError(f"{table.origin}: row {row} has no value in column {blocks!r} for its block: fill it in")
        block = block_numbers(name, texts.astype(str), table.rows)
    rows = split_rows(name, table.rows, splits, seed, block)
    return Site(name, table, {part: own.numpy() for part, own in rows.items()}, block)


def client_of(site: Site, table: Table, groups: Mapping[str, int] | None = None) -> Client:
    """A site's rows as a client's inputs and labels."""
    inputs = table.inputs(site.raw)
    labels = table.labels(site.raw)
    if labels is None:
        raise DataError(f"{site.raw.origin}: has no labels")
    everything = Split(inputs, labels, site.block)
    train, validation, test = (everything.take(torch.from_numpy(site.rows[part])) for part in PARTS)
    return Client(site.id, train, validation, test, entry_of(groups, "groups", site.id))


def column_names(given: Iterable[str], option: str) -> tuple[str, ...]:
    """Column names, also from one text with commas."""
    names = given.split(",") if isinstance(given, str) else given
    cleaned = tuple(dict.fromkeys(str(name).strip() for name in names))
    if "" in cleaned:
        raise ConfigError(f"{option}={given!r}: expected names of columns, as in 'age,sex'")
    return cleaned


def check_named(
    raw: Mapping[str, RawTable],
    label: str,
    options: Mapping[str, Sequence[str]],
) -> None:
    """The label is in every table, and every other column that is named in one."""
    for table in raw.values():
        if label not in table.columns:
            raise DataError(f"{table.origin}: no column {label!r} for the label: {did_you_mean(label, table.columns)}")
    known = set().union(*(table.columns for table in raw.values()))
    for option, names in options.items():
        for name in names:
            if name not in known:
                raise DataError(f"{option}: no table has a column {name!r}: {did_you_mean(name, known)}")
            if name == label:
                raise DataError(f"{option}: {name!r} is the label, which is always read as it is given")


def _warn_of_row_numbers(reports: Sequence[SiteReport], columns: Sequence[Column]) -> None:
    """Say which columns look like row numbers: whole numbers that count the rows of every site."""
    suspects = [column.name for column in columns if column.kind == "number"]
    counting = [name for name in suspects if all(name in report.counting for report in reports)]
    if counting:
        warnings.warn(
            f"column {listed(counting)} counts the rows and is used as an input: give --drop {counting[0]} if it is "
            "only the number of a row",
            stacklevel=4,
        )
