"""The table of each client: one file or data frame per client, or the rows that a column gives to it."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import DataError, did_you_mean
from coterie.federation.corrections import CORRECTIONS, load_corrections
from coterie.federation.table_files import PARQUET, TABLES, RawTable, is_frame, read_frame, read_table

Tables = Any
"""Paths, patterns, data frames, or a mapping of them (or of tables already read) by client."""


def is_table_path(given: str | Path) -> bool:
    """Whether a path names tables: a pattern, a CSV or Parquet file, or a folder with such files and no arrays."""
    path = Path(given)
    if path.suffix.lower() in (*TABLES, *PARQUET, CORRECTIONS):
        return True
    if path.is_dir():
        return any(_tables_in(path)) and not any(path.glob("*.np[yz]"))
    return glob.has_magic(str(given))


def find_tables(given: str | Path) -> list[Path]:
    """The files that a pattern, a folder or a file's own name stands for, in order of their names."""
    path = Path(given)
    if path.suffix.lower() == CORRECTIONS:
        return find_tables(load_corrections(path).data)
    if path.is_dir():
        found = sorted(_tables_in(path))
        expected = "a .csv or .parquet file per client"
    else:
        found = [path] if path.exists() else sorted(Path(name) for name in glob.glob(str(given), recursive=True))
        found = [file for file in found if not file.is_dir()]
        expected = "an existing file, or a pattern such as 'sites/*.csv'"
    if not found:
        raise DataError(f"{given}: no table found there: give {expected}")
    return found


def tables_name(given: Any) -> str:
    """What a federation is called that is made from these: by the folder of a pattern, or the file's own name."""
    if not isinstance(given, str | Path):
        return "tables"
    path = Path(given)
    if glob.has_magic(path.name):
        return path.parent.name or "tables"
    return path.stem if path.suffix.lower() in (*TABLES, *PARQUET, CORRECTIONS) else path.name


def _tables_in(folder: Path) -> Iterator[Path]:
    """The tables of a folder; a .txt file there is more often a text."""
    return (file for file in folder.iterdir() if file.suffix.lower() in (".csv", ".tsv", *PARQUET))


def client_names(files: Sequence[Path]) -> list[str]:
    """A name for each file: its own without the ending, with its folders where that is not unique."""
    names = [file.stem for file in files]
    if len(set(names)) == len(names):
        return names
    above = os.path.commonpath([file.absolute().parent for file in files])
    paths = [file.absolute().relative_to(above).with_suffix("") for file in files]
    names = ["-".join(path.parts) for path in paths]
    if len({path.name for path in paths}) == 1:  # a/data.csv, b/data.csv
        names = ["-".join(path.parts[:-1]) for path in paths]
    if len(set(names)) < len(names):  # the endings alone differ
        names = [file.name for file in files]
    return names


def read_all(tables: Tables, client_column: str | None = None, decimal: str | None = None) -> dict[str, RawTable]:
    """The table of each client, by its name."""
    if isinstance(tables, str | Path) and Path(tables).suffix.lower() == CORRECTIONS:
        corrections = load_corrections(tables)
        return corrections.apply(read_all(corrections.data, client_column, decimal))
    if isinstance(tables, Mapping):
        found = {str(name): _read_one(item, str(name), decimal) for name, item in tables.items()}
    elif is_frame(tables):
        if client_column is None:
            raise DataError(
                "one table for all clients needs client_column, the column that names the client of each row"
            )
        found = {"": read_frame(tables, "the table", decimal)}
    else:
        files = _files_of(tables, client_column)
        found = {name: read_table(file, decimal) for name, file in zip(client_names(files), files, strict=True)}
    if not found:
        raise DataError("no tables were given: give at least one")
    return found if client_column is None else by_client(list(found.values()), client_column)


def _read_one(item: Any, name: str, decimal: str | None) -> RawTable:
    """A client's table, from what it is given as."""
    if isinstance(item, RawTable):
        return item
    return read_frame(item, f"client {name!r}", decimal) if is_frame(item) else read_table(item, decimal)


def _files_of(tables: Any, client_column: str | None) -> list[Path]:
    """The files that paths and patterns name, each once."""
    given = [tables] if isinstance(tables, str | Path) else list(tables)
    files = [file for path in given for file in find_tables(path)]
    if len(files) == 1 and client_column is None:
        raise DataError(
            f"{files[0]}: one table for all clients needs --client-column, the column that names the client of "
            "each row (Python: client_column='…')"
        )
    if len(set(files)) < len(files):
        raise DataError(f"{next(f for i, f in enumerate(files) if f in files[:i])}: given twice: give it once")
    return files


def by_client(tables: Sequence[RawTable], column: str) -> dict[str, RawTable]:
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
            found[owner] = _joined(found[owner], part) if owner in found else part
    return found


def _joined(first: RawTable, second: RawTable) -> RawTable:
    """One table with the rows of two."""
    names = common_columns({first.origin: list(first.columns), second.origin: list(second.columns)})
    columns = {name: first.columns[name].followed_by(second.columns[name]) for name in names}
    return replace(first, columns=columns, rows=first.rows + second.rows)


def common_columns(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """The columns that all tables have, in the order of the first; a table that differs from most is named."""
    counts = Counter(name for names in columns.values() for name in names)
    if all(count == len(columns) for count in counts.values()):
        return list(next(iter(columns.values())))
    usual = [name for name, count in counts.items() if 2 * count > len(columns)]
    for origin, names in columns.items():
        lacking = next((name for name in usual if name not in names), None)
        if lacking is not None:
            other = next(o for o, names in columns.items() if lacking in names)
            raise DataError(
                f"{origin}: no column {lacking!r}, which {other} has: add it (empty will do), or leave it out "
                f"everywhere with --drop {lacking} (Python: drop=[…])"
            )
    origin, extra = next((o, n) for o, names in columns.items() for n in names if n not in usual)
    raise DataError(
        f"{origin}: column {extra!r} is not in the other tables: add it there (empty will do), or leave it out with "
        f"--drop {extra} (Python: drop=[…])"
    )
