"""How the files of each natural federation become one table per site: a hospital, a school."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.data.formats import damaged, read_text
from coterie.federation.table_files import RawTable, number_name, parse_table
from coterie.federation.table_sites import by_client

Files = Sequence[Sequence[Path]]

HEART_COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
)  # fmt: skip
"""The 13 features of UCI's processed files under their published names; the 14th column is the diagnosis, 0 to 4."""
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def load_heart(files: Files) -> dict[str, RawTable]:
    """The patients of each hospital; `disease` is no for diagnosis 0, else yes, as in the literature."""
    return {name: _heart(path) for name, (path,) in zip(HOSPITALS, files, strict=True)}


def _heart(path: Path) -> RawTable:
    lines = [[*HEART_COLUMNS, "disease"]]
    for number, fields in enumerate(csv.reader(io.StringIO(read_text(path), newline="")), start=1):
        if not fields:
            continue
        try:
            # Some hospitals' files write 1.0 and others 1, which as categories would be two.
            values = ["?" if field.strip() == "?" else number_name(float(field)) for field in fields]
        except ValueError:
            values = []
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
        return by_client([table], "school", ".")

    return load
