"""The table of each client: one file or data frame per client, or the rows that a column gives to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import DataError, did_you_mean
from coterie.federation.table_files import RawTable, client_names, find_tables, is_frame, read_frame, read_table

Tables = Any
"""Paths, patterns, data frames, or a mapping of them (or of tables already read) by client."""


def read_all(tables: Tables, client_column: str | None = None, decimal: str = ".") -> dict[str, RawTable]:
    """The table of each client, by its name."""
    if isinstance(tables, Mapping):
        found = {
            str(name): read_frame(item, f"client {str(name)!r}", decimal)
            if is_frame(item)
            else item
            if isinstance(item, RawTable)
            else read_table(item, decimal)
            for name, item in tables.items()
        }
    elif is_frame(tables):
        if client_column is None:
            raise DataError(
                "one table for all clients needs client_column, the column that names the client of each row"
            )
        found = {"": read_frame(tables, "the table", decimal)}
    else:
        given = [tables] if isinstance(tables, str | Path) else list(tables)
        files = [file for path in given for file in find_tables(path)]
        if len(files) == 1 and client_column is None:
            raise DataError(
                f"{files[0]}: one table for all clients needs --client-column, the column that names the client of "
                "each row (Python: client_column='…')"
            )
        if len(set(files)) < len(files):
            raise DataError(f"{next(f for i, f in enumerate(files) if f in files[:i])}: given twice: give it once")
        found = {name: read_table(file, decimal) for name, file in zip(client_names(files), files, strict=True)}
    if not found:
        raise DataError("no tables were given: give at least one")
    return found if client_column is None else by_client(list(found.values()), client_column, decimal)


def by_client(tables: Sequence[RawTable], column: str, decimal: str) -> dict[str, RawTable]:
    """The rows of each client that the column names, of all tables, in the order in which clients first appear."""
    found: dict[str, RawTable] = {}
    for table in tables:
        if column not in table.columns:
            raise DataError(
                f"{table.origin}: no column {column!r} for the client: {did_you_mean(column, table.columns)}"
            )
        owners = table.columns[column].texts
        rows: dict[str, list[int]] = {}
        for row, owner in enumerate(owners):
            if owner is None:
                raise DataError(f"{table.origin}: row {row + 1} has no client in column {column!r}: fill it in")
            rows.setdefault(owner, []).append(row)
        for owner, own in rows.items():
            part = replace(table.take(np.array(own)), origin=f"{table.origin}, client {owner!r}")
            found[owner] = _joined(found[owner], part, decimal) if owner in found else part
    return found


def _joined(first: RawTable, second: RawTable, decimal: str) -> RawTable:
    """One table with the rows of two."""
    names = common_columns({first.origin: list(first.columns), second.origin: list(second.columns)})
    columns = {name: first.columns[name].followed_by(second.columns[name], decimal) for name in names}
    return RawTable(first.origin, columns, first.rows + second.rows)


def common_columns(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """The columns that all tables have, in the order of the first; a table that differs from most is named."""
    counts = Counter(name for names in columns.values() for name in names)
    if all(count == len(columns) for count in counts.values()):
        return list(next(iter(columns.values())))
    usual = {name for name, count in counts.items() if 2 * count > len(columns)}
    for origin, names in columns.items():
        lacking = [name for name in counts if name in usual and name not in names]
        if lacking:
            other = next(o for o, n in columns.items() if lacking[0] in n)
            raise DataError(
                f"{origin}: no column {lacking[0]!r}, which {other} has: add it (empty will do), or leave it out "
                f"everywhere with --drop {lacking[0]} (Python: drop=[…])"
            )
    origin, extra = next((o, n) for o, names in columns.items() for n in names if n not in usual)
    raise DataError(
        f"{origin}: column {extra!r} is not in the other tables: add it there (empty will do), or leave it out with "
        f"--drop {extra} (Python: drop=[…])"
    )
