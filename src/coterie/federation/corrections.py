"""Corrections of tables: a TOML file that says what to change when tables are read. The tables stay as they are."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from coterie.errors import DataError, did_you_mean
from coterie.federation.table_files import RawColumn, RawTable, clean, parse_cells

CORRECTIONS = ".toml"
"""How the names of such files end."""
EVERY_SITE = "*"
"""The name under which what holds for all sites stands."""


class SiteCorrections(BaseModel):
    """What changes in the table of a site; columns are named as they are called after `rename`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rename: dict[str, str] = {}
    """Columns by their present names."""
    drop: list[str] = []
    """Columns that are left out."""
    add: list[str] = []
    """Columns that are added without a value."""
    values: dict[str, dict[str, str]] = {}
    """By column: what a text is replaced by; "" is a missing value."""
    units: dict[str, tuple[float, float]] = {}
    """By column: (factor, offset) of a unit; a value becomes (value - offset) / factor."""
    complete: list[str] = []
    """Columns; rows without a value there are left out."""
    distinct: bool = False
    """Whether repeated rows are left out."""

    def apply(self, table: RawTable) -> RawTable:
        """The table as it is read with these corrections."""
        self._check_names(table)
        columns = {self.rename.get(name, name): column for name, column in table.columns.items()}
        columns |= {name: RawColumn([""] * table.rows, None) for name in self.add}
        for name, texts in self.values.items():
            columns[name] = _replaced(columns[name], texts, table.form.decimal)
        for name, (factor, offset) in self.units.items():
            numbers = columns[name].numbers
            if numbers is None:
                raise DataError(f"{table.origin}, column {name!r}: holds texts, and the corrections change its unit")
            columns[name] = RawColumn(None, (numbers - offset) / factor)
        columns = {name: column for name, column in columns.items() if name not in self.drop}
        return self._chosen_rows(replace(table, columns=columns))

    def _check_names(self, table: RawTable) -> None:
        """Refuse a column that the table does not have."""
        known = {*table.columns, *self.rename.values()}
        for name in (*self.rename, *self.values, *self.units):
            if name not in known:
                meant = did_you_mean(name, table.columns)
                raise DataError(f"{table.origin}: no column {name!r}, which the corrections name: {meant}")

    def _chosen_rows(self, table: RawTable) -> RawTable:
        rows = np.arange(table.rows)
        for name in self.complete:
            rows = np.array([row for row in rows if table.columns[name].texts[row] is not None], dtype=np.int64)
        if self.distinct:
            rows = rows[first_of_each(table)[rows]]
        return table if len(rows) == table.rows else table.take(rows)


def _replaced(column: RawColumn, texts: Mapping[str, str], decimal: str) -> RawColumn:
    cells = column.cells or ["" if text is None else text for text in column.texts]
    return parse_cells([texts.get(clean(cell) or "", cell) for cell in cells], "." if column.cells is None else decimal)


def first_of_each(table: RawTable) -> np.ndarray:
    """Which rows are the first of their kind, `(n,) bool`."""
    seen = set()
    first = np.ones(table.rows, dtype=bool)
    for row, values in enumerate(zip(*(column.texts for column in table.columns.values()), strict=True)):
        first[row] = values not in seen
        seen.add(values)
    return first


class Corrections(BaseModel):
    """Which tables are read, and what changes in each site's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str
    """The tables: a path or a pattern, relative to the file."""
    sites: dict[str, SiteCorrections] = {}
    """By site; those under "*" hold for all and come first."""

    def apply(self, tables: Mapping[str, RawTable]) -> dict[str, RawTable]:
        """The tables as they are read with these corrections."""
        unknown = next((site for site in self.sites if site not in tables and site != EVERY_SITE), None)
        if unknown is not None:
            raise DataError(f"no table of the site {unknown!r}, which the corrections name: {', '.join(tables)}")
        nothing = SiteCorrections()
        everywhere = self.sites.get(EVERY_SITE, nothing)
        return {site: self.sites.get(site, nothing).apply(everywhere.apply(table)) for site, table in tables.items()}

    def to_toml(self, comments: Sequence[str] = ()) -> str:
        """The content of a file of corrections, with comments at its top."""
        lines = [f"# {' '.join(comment.split())}" for comment in comments] + [f"data = {_toml(self.data)}"]
        for site, changes in self.sites.items():
            lines += ["", f"[sites.{_toml(site)}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in changes.model_dump(exclude_defaults=True).items()]
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(entry)}" for key, entry in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)  # texts, numbers, booleans and lists are written alike in both


def load_corrections(path: str | Path) -> Corrections:
    """The corrections in a file, with the path of the tables in full."""
    path = Path(path)
    try:
        found = Corrections.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise DataError(f"{path}: cannot be read ({problem}): give a file that coterie check --fix wrote") from problem
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f"{path}: no corrections of tables: {where}: {first['msg']}") from problem
    return found.model_copy(update={"data": str(path.absolute().parent / found.data)})
