"""How the files of each natural federation become one table per site: a hospital, a school, a station, a field."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from coterie.data.formats import Files, damaged, read_mat, read_text
from coterie.federation.table_files import RawColumn, RawTable, number_name, parse_table
from coterie.federation.table_sites import by_client

HEART_COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
)  # fmt: skip
"""The 13 features of UCI's processed files under their published names; the 14th column is the diagnosis, 0 to 4."""
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def load_heart(files: Files) -> dict[str, RawTable]:
    """The patients of each hospital; `disease` is no for diagnosis 0, else yes, as in the literature."""
    return {name: _heart(path) for name, (path,) in zip(HOSPITALS, files, strict=True)}


def _heart_values(fields: Sequence[str]) -> list[str]:
    """A patient's numbers in one form: some hospitals' files write 1.0 and others 1. Empty where one is none."""
    try:
        return ["?" if field.strip() == "?" else number_name(float(field)) for field in fields]
    except ValueError:
        return []


def _heart(path: Path) -> RawTable:
    lines = [[*HEART_COLUMNS, "disease"]]
    for number, fields in enumerate(csv.reader(io.StringIO(read_text(path), newline="")), start=1):
        if not fields:
            continue
        values = _heart_values(fields)
        if len(values) != len(lines[0]) or values[-1] not in ("0", "1", "2", "3", "4"):
            raise damaged(path, f"line {number} is not 13 values and a diagnosis from 0 to 4")
        lines.append([*values[:-1], "no" if values[-1] == "0" else "yes"])
    if len(lines) == 1:
        raise damaged(path, "it holds no patients")
    return parse_table("\n".join(",".join(fields) for fields in lines), str(path))


def load_schools(label: str) -> Callable[[Files], dict[str, RawTable]]:
    """A reader for a table of pupils with a column `school`."""

    def load(files: Files) -> dict[str, RawTable]:
        path = files[0][0]
        table = parse_table(read_text(path), str(path))
        lacking = [column for column in ("school", label) if column not in table.columns]
        if lacking:
            raise damaged(path, f"no column {lacking[0]!r}")
        return by_client([table], "school")

    return load


AIR_NUMBERS = ("PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM")
AIR_COLUMNS = ("year", "month", "day", "hour", "PM2.5", *AIR_NUMBERS, "wd")
SUBURBAN = frozenset({"Changping", "Dingling", "Huairou", "Shunyi"})
"""Stations outside the city; the other eight are urban."""


def load_air(files: Files) -> dict[str, RawTable]:
    """The hours of each station in which PM2.5 was measured; what is predicted is its logarithm, `log PM2.5`.

    A column `week` counts weeks from the first day of each file.
    """
    return {path.name.split("_")[2]: _air(path) for path in files[0]}


def _air_cells(path: Path) -> dict[str, list[str]]:
    """The texts in the columns of a station's file."""
    rows = [line.replace('"', "").split(",") for line in read_text(path).splitlines()]
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        raise damaged(path, "not a header and rows of as many values")
    cells = {name: values for name, *values in zip(*rows, strict=True)}
    lacking = [name for name in AIR_COLUMNS if name not in cells]
    if lacking:
        raise damaged(path, f"no column {lacking[0]!r}")
    return cells


def _air(path: Path) -> RawTable:
    cells = _air_cells(path)
    try:
        known = {name: _with_gaps(cells[name]) for name in AIR_COLUMNS if name != "wd"}
        year, month, day = (known[name].astype(np.int64) for name in ("year", "month", "day"))
    except ValueError as problem:
        raise damaged(path, f"not a number or NA ({problem})") from problem
    months = (year - 1970).astype("M8[Y]").astype("M8[M]") + (month - 1)
    days = months.astype("M8[D]").astype(np.int64) + day
    known["week"] = ((days - days[0]) // 7).astype(np.float64)
    measured = np.flatnonzero(known["PM2.5"] > 0)
    columns = {name: RawColumn(None, known[name][measured]) for name in ("week", "month", "hour", *AIR_NUMBERS)}
    columns["wd"] = RawColumn([cells["wd"][row] for row in measured], None)
    columns["log PM2.5"] = RawColumn(None, np.log(known["PM2.5"][measured]))
    return RawTable(str(path), columns, len(measured))


def _with_gaps(cells: Sequence[str]) -> np.ndarray:
    """The numbers in a column, NaN for NA."""
    return np.array([np.nan if cell == "NA" else float(cell) for cell in cells])


FIELDS, FOLIATED = 29, 15
"""Minefields; the first 15 were highly foliated, the others bare earth or desert (Xue et al., 2007)."""


def load_landmine(files: Files) -> dict[str, RawTable]:
    """The nine radar features of each field's places, and whether there is a `mine`."""
    path = files[0][0]
    features, labels = (cells.reshape(-1) for cells in read_mat(path, ("feature", "label")))
    if len(features) != FIELDS or len(labels) != FIELDS:
        raise damaged(path, f"{len(features)} features and {len(labels)} labels, expected those of {FIELDS} fields")
    pairs = zip(features, labels, strict=True)
    return {f"field-{i:02d}": _field(path, i, x, y) for i, (x, y) in enumerate(pairs, start=1)}


def _field(path: Path, number: int, features: np.ndarray, labels: np.ndarray) -> RawTable:
    if (
        features.ndim != 2
        or features.shape[1] != 9
        or labels.size != len(features)
        or not np.isin(labels, (0, 1)).all()
    ):
        raise damaged(path, f"field {number} is no table of 9 features with a label 0 or 1 for each row")
    columns = {f"feature {i + 1}": RawColumn(None, features[:, i].astype(np.float64)) for i in range(9)}
    columns["mine"] = RawColumn(["no" if label == 0 else "yes" for label in labels.reshape(-1)], None)
    return RawTable(f"{path}, field {number}", columns, len(features))
