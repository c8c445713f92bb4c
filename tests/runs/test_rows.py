"""Files of very many rows: read as they were written, a row at a time, and damage is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.errors import RunError
from coterie.runs.folder import RunFolder
from coterie.runs.records import ClientRecord
from coterie.runs.rows import read_row, read_rows, write_rows

ROWS = [ClientRecord(f"ü{i}", i % 2, None, 3, {"accuracy": i / 10, "loss": None}) for i in range(7)]


def test_rows_come_back_one_by_one_and_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    write_rows(path, ROWS)
    found = list(read_rows(path))
    assert [row.value["client"] for row in found] == [row.client for row in ROWS]
    assert json.loads(path.read_text(encoding="utf-8"))["rows"] == [row.value for row in found]
    with open(path, "rb") as file:
        assert read_row(file, found[4].place) == found[4].value


def test_a_folder_reads_rows_as_it_reads_a_table(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {"method": "mine"}) as folder:
        write_rows(folder.path / "clients.json", ROWS)
        assert folder.clients() == ROWS
        rows = [row.value for row in read_rows(tmp_path / "run" / "clients.json")]
        assert folder.read_json("clients.json") == {"rows": rows}


def test_no_rows_are_rows_too(tmp_path: Path) -> None:
    write_rows(tmp_path / "none.json", [])
    assert list(read_rows(tmp_path / "none.json")) == []


@pytest.mark.parametrize(
    ("old", "new"), [("0.4", "0.5"), ('"client": "ü3"', '"client": "ü4"'), ("\n  ]", "]"), ('{"client"', '{"client')]
)
def test_damage_is_found(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    write_rows(path, ROWS)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(RunError, match=r"clients\.json"):
        list(read_rows(path))


def test_a_row_that_is_missing_is_found(tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    write_rows(path, ROWS)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:5] + lines[6:]), encoding="utf-8")
    with pytest.raises(RunError, match="checksum"):
        list(read_rows(path))
