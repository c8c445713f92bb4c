"""Tables as they are given: CSV and Parquet files and data frames, read into columns of numbers or texts."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coterie.errors import DataError, extra
from coterie.federation.client import check_regular

DELIMITERS = ",;\t|"
DECIMAL_COMMA, DECIMAL_POINT = re.compile(r"\s*[+-]?\d+,\d+\s*"), re.compile(r"\s*[+-]?\d*\.\d+\s*")
THOUSANDS = re.compile(r"\s*[+-]?\d{1,3},\d{3}\s*")
"""Numbers with a decimal comma that may as well be whole ones with a comma between thousands."""
UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""The first bytes of a text in UTF-16."""
MISSING = frozenset({"", "?", "#N/A", "N/A", "NA", "NaN", "n/a", "nan", "-nan", "null", "NULL", "None", "<NA>"})
"""Cells that say that there is no value."""
BOOLEANS = {"true": "True", "TRUE": "True", "false": "False", "FALSE": "False"}
"""Spellings that pandas takes for booleans, as Python writes them: a file and a data frame of it mean the same."""
TABLES = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
MOSTLY = 0.5
"""A column with texts is one of numbers with mistakes if more of its cells than this share are numbers."""


@dataclass(frozen=True)
class RawColumn:
    """A column as it was given.

    `numbers: (n,) float64` holds NaN where there is no value; it is None for a column with texts. `cells` are the texts
    of a file, and None for numbers that never were text.
    """

    cells: Sequence[str] | None
    numbers: np.ndarray | None
    odd: tuple[int, str] | None = None
    """Row and text of the first cell that is no number in a column where most are."""

    def __len__(self) -> int:
        return len(self.numbers) if self.numbers is not None else len(self.cells or ())

    @cached_property
    def texts(self) -> np.ndarray:
        """The values as texts `(n,)`, None where there is none."""
        found = np.empty(len(self), dtype=object)
        if self.cells is not None:
            known = {cell: clean(cell) for cell in set(self.cells)}
            found[:] = [known[cell] for cell in self.cells]
        elif self.numbers is not None:
            known_numbers = {value: None if np.isnan(value) else number_name(value) for value in set(self.numbers)}
            found[:] = [known_numbers[value] if value == value else None for value in self.numbers]
        return found

    @property
    def empty(self) -> bool:
        """Whether there is no value at all."""
        if self.numbers is not None:
            return bool(np.isnan(self.numbers).all())
        return all(text is None for text in self.texts)

    def take(self, rows: np.ndarray) -> RawColumn:
        """The column of some rows."""
        cells = None if self.cells is None else [self.cells[row] for row in rows.tolist()]
        return RawColumn(cells, None if self.numbers is None else self.numbers[rows], self.odd)

    def followed_by(self, other: RawColumn) -> RawColumn:
        """This column with another below it."""
        cells = [
            cell
            for column in (self, other)
            for cell in (column.cells or ["" if t is None else t for t in column.texts])
        ]
        if self.numbers is not None and other.numbers is not None:
            return RawColumn(cells, np.concatenate([self.numbers, other.numbers]))
        return parse_cells(cells)


@dataclass(frozen=True)
class TextForm:
    """How the text of a table is written, as found in its file."""

    encoding: str = "UTF-8"
    separator: str = ","
    decimal: str = "."


@dataclass(frozen=True)
class RawTable:
    """A table as it was given; `origin` is the file, or who it is of."""

    origin: str
    columns: Mapping[str, RawColumn]
    rows: int
    form: TextForm = TextForm()

    def take(self, rows: np.ndarray) -> RawTable:
        """The table of some rows."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return replace(self, columns=columns, rows=len(rows))


def clean(cell: str) -> str | None:
    """A cell's text without the spaces around it, or None if it says that there is no value."""
    text = cell.strip()
    return None if text in MISSING else BOOLEANS.get(text, text)


def number_name(value: float) -> str:
    """A number as a text, the same for 1 and 1.0."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def is_frame(given: Any) -> bool:
    """Whether this is a data frame of pandas or of a library that converts its own to pandas."""
    return hasattr(given, "to_pandas") or (hasattr(given, "columns") and hasattr(given, "dtypes"))


def read_table(path: str | Path, decimal: str | None = None) -> RawTable:
    """The table in a file; its encoding, separator and (without `decimal`) decimal mark are found in it."""
    path = Path(path)
    check_regular(path)
    if path.suffix.lower() in PARQUET:
        return read_frame(_parquet(path), str(path), decimal)
    try:
        text, encoding = _decoded(path.read_bytes())
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror})") from problem
    except UnicodeDecodeError as problem:
        raise DataError(
            f"{path}: not a text in UTF-8, UTF-16 or Windows-1252 (byte {problem.start}): save it as UTF-8"
        ) from problem
    try:
        return parse_table(text, str(path), decimal, encoding)
    except csv.Error as problem:
        raise DataError(f"{path}: not a readable CSV file ({problem})") from problem


def _decoded(content: bytes) -> tuple[str, str]:
    """The text in a file and its encoding: UTF-16 by its first bytes, UTF-8, or else what Excel writes in the West."""
    if content.startswith(UTF16):
        return content.decode("utf-16"), "UTF-16"
    if 0 in content:
        raise UnicodeDecodeError("utf-8", content, content.index(0), content.index(0) + 1, "no text holds this byte")
    try:
        return content.decode("utf-8-sig"), "UTF-8"
    except UnicodeDecodeError:
        return content.decode("cp1252"), "Windows-1252"


def parse_table(text: str, origin: str, decimal: str | None = None, encoding: str = "UTF-8") -> RawTable:
    """The table in the text of a CSV file."""
    delimiter, text = _delimiter(text.replace("\r\n", "\n").replace("\r", "\n"))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    header = next((fields for fields in reader if any(field.strip() for field in fields)), None)
    if header is None:
        raise DataError(f"{origin}: the file is empty: give it rows or leave it out")
    names = _column_names(header, origin)
    rows = []
    for fields in reader:
        if not any(fields):
            continue
        if len(fields) != len(names):
            raise DataError(
                f"{origin}, line {reader.line_num}: {len(fields)} fields, but the header has {len(names)} "
                f"(separated by {delimiter!r}): complete the line, or quote a field that holds {delimiter!r}"
            )
        rows.append(fields)
    if not rows:
        raise DataError(f"{origin}: has a header and no rows: give it rows or leave it out")
    cells = dict(zip(names, zip(*rows, strict=True), strict=True))
    decimal = decimal or _decimal(cells.values(), delimiter)
    columns = {name: parse_cells(column, decimal) for name, column in cells.items()}
    return RawTable(origin, columns, len(rows), TextForm(encoding, delimiter, decimal))


def _decimal(columns: Iterable[Sequence[str]], delimiter: str) -> str:
    """The decimal mark of a file: a comma if numbers have one, none has a point, and it parts no thousands."""
    cells = {cell for column in columns for cell in column}
    commas = [cell for cell in cells if DECIMAL_COMMA.fullmatch(cell)]
    if not commas or any(map(DECIMAL_POINT.fullmatch, cells)):
        return "."
    thousands = delimiter == "," and all(map(THOUSANDS.fullmatch, commas))
    return "." if thousands else ","


def _delimiter(text: str) -> tuple[str, str]:
    """What separates the fields, judged by the first line with text, and the text without Excel's `sep=` line."""
    text = text.lstrip("\n")
    first, _, rest = text.partition("\n")
    if len(first) == 5 and first.lower().startswith("sep=") and first[4] in DELIMITERS:
        return first[4], rest
    fields = {mark: len(next(csv.reader([first], delimiter=mark), [])) for mark in DELIMITERS}
    return max(DELIMITERS, key=lambda mark: fields[mark]), text


def _column_names(header: Sequence[str], origin: str) -> list[str]:
    """The names in a header; a column without one is called as pandas calls it."""
    names = [field.strip() or f"Unnamed: {i}" for i, field in enumerate(header)]
    if all(_number(field) is not None for field in header if field.strip()):
        raise DataError(f"{origin}: its first line holds numbers only: begin it with a line of column names")
    check_names(names, origin)
    return names


def check_names(names: Sequence[str], origin: str) -> None:
    """Refuse two columns of one name."""
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise DataError(f"{origin}: two columns are called {twice!r}: rename one")


def parse_cells(cells: Sequence[str], decimal: str = ".") -> RawColumn:
    """A column of texts, with the numbers they stand for if all do."""
    numbers = _plain_numbers(cells) if decimal == "." else None
    if numbers is not None:
        return RawColumn(cells, numbers)
    meant = {cell: _cell_number(cell, decimal) for cell in set(cells)}
    values = [meant[cell] for cell in cells]
    wrong = next((row for row, value in enumerate(values) if value is None), None)
    if wrong is None:
        return RawColumn(cells, np.array(values, dtype=np.float64))
    texts = {cell for cell, value in meant.items() if value is None and not DECIMAL_COMMA.fullmatch(cell)}
    known = sum(value is None or value == value for value in values)
    mistakes = sum(cell in texts for cell in cells)
    mostly_numbers = known - mistakes > MOSTLY * known
    return RawColumn(cells, None, (wrong + 1, cells[wrong].strip()) if mostly_numbers else None)


def _plain_numbers(cells: Sequence[str]) -> np.ndarray | None:
    """The numbers of a column in which every cell is one as Python writes it."""
    try:
        numbers = np.array([float(cell) for cell in cells])
    except ValueError:
        return None
    return None if "_" in "".join(cells) else numbers  # Python takes 1_000 for a number


def _cell_number(cell: str, decimal: str) -> float | None:
    text = clean(cell)
    return np.nan if text is None else _number(text if decimal == "." else text.replace(".", "_").replace(decimal, "."))


def _number(text: str) -> float | None:
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _parquet(path: Path) -> Any:
    with extra("tables", f"{path}: Parquet"):
        import pandas
        import pyarrow  # noqa: F401 (what pandas reads Parquet with)
    try:
        return pandas.read_parquet(path, engine="pyarrow")
    except Exception as problem:  # pyarrow's own errors have many types
        raise DataError(f"{path}: not a readable Parquet file ({problem})") from problem


def read_frame(frame: Any, origin: str, decimal: str | None = None) -> RawTable:
    """The table in a data frame of pandas, or of a library that converts its own."""
    if hasattr(frame, "to_pandas"):
        frame = frame.to_pandas()
    names = [str(name).strip() for name in frame.columns]
    check_names(names, origin)
    if not len(frame):
        raise DataError(f"{origin}: has no rows: give it rows or leave it out")
    columns = {name: _series(frame.iloc[:, i], decimal or ".") for i, name in enumerate(names)}
    return RawTable(origin, columns, len(frame))


def _series(series: Any, decimal: str) -> RawColumn:
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    kind = series.dtype
    if is_numeric_dtype(kind) and not is_bool_dtype(kind) and not is_complex_dtype(kind):
        return RawColumn(None, np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan)))
    missing = series.isna().to_numpy()
    return parse_cells(["" if gone else str(value) for value, gone in zip(series, missing, strict=True)], decimal)
