"""`coterie check`: all problems of all tables of a federation in one answer, each with a proposed remedy.

The checks run one after another on tables as they are read with the remedies found so far: a column with another name
at one site, with texts among its numbers and in another unit is named for all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from coterie.errors import DataError, did_you_mean
from coterie.federation.corrections import CORRECTIONS, load_corrections
from coterie.federation.table_files import RawTable, read_table
from coterie.federation.table_sites import by_client, client_names, find_tables
from coterie_tables.columns import (
    check_cells,
    check_classes,
    check_forms,
    check_meanings,
    check_names,
    check_rows,
)
from coterie_tables.findings import Finding, Tables, merge
from coterie_tables.spelling import check_categories, check_spelling, misspelt, same_answers, same_letters
from coterie_tables.units import check_units


def check_tables(
    data: str | Path, label: str | None = None, client_column: str | None = None, skip: Iterable[str] = ()
) -> list[Finding]:
    """All problems of the tables that a pattern, a folder or a file stands for.

    Args:
        data: the tables, as in `Federation.from_tables`.
        label: the column to predict; without it labels are checked as other columns are.
        client_column: the column that names the site of each row; without it every file is a site.
        skip: columns that will be dropped, and are not checked.

    Returns:
        The findings, in the order of the checks.

    Raises:
        DataError: there are no tables, or none has the label or the client column.
    """
    files = find_tables(data)
    found: list[Finding] = []
    tables: dict[str, RawTable] = {}
    for site, file in zip(client_names(files), files, strict=True):
        try:
            tables[site] = read_table(file)
        except DataError as problem:
            what, _, remedy = str(problem).removeprefix(str(file)).lstrip(":, ").rpartition(": ")
            found.append(Finding(site, "", what or remedy, remedy))
    if client_column is not None:
        tables = by_client(list(tables.values()), client_column)
    if Path(data).suffix.lower() == CORRECTIONS:
        tables = load_corrections(data).apply(tables)
    _check_label(tables, label)
    left_out = {client_column, *skip}
    tables = {site: _without(table, left_out) for site, table in tables.items()}
    checks: list[Callable[[Tables], Iterator[Finding]]] = [
        check_forms,
        lambda known: check_names(known, label),
        lambda known: check_meanings(known, label),
        lambda known: check_spelling(known, label, same_letters),
        lambda known: check_spelling(known, label, same_answers),
        lambda known: check_spelling(known, label, misspelt),
        lambda known: check_categories(known, label),
        lambda known: check_cells(known, label),
        check_units,
        lambda known: check_rows(known, label),
        lambda known: check_classes(known, label),
    ]
    for check in checks if tables else []:
        further = list(check(tables))
        tables = merge(further).apply(tables)
        found += further
    return found


def _check_label(tables: Tables, label: str | None) -> None:
    known = {name for table in tables.values() for name in table.columns}
    if tables and label is not None and label not in known:
        raise DataError(f"no table has a column {label!r} for the label: {did_you_mean(label, known)}")


def _without(table: RawTable, names: set[str | None]) -> RawTable:
    return replace(table, columns={name: column for name, column in table.columns.items() if name not in names})
