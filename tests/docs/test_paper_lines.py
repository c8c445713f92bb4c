"""The tables that set a paper's algorithm beside a method's file: the code in them is in the file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("method", "lines"), [("ifca", 12), ("fedcuau", 8)])
def test_the_code_beside_the_papers_lines_is_in_the_file(method: str, lines: int) -> None:
    page = (ROOT / "docs" / "methods" / f"{method}.md").read_text()
    source = (ROOT / "src" / "coterie" / "methods" / f"{method}.py").read_text()
    _, _, table = page.partition(f"| line | the paper | `methods/{method}.py` |\n|---|---|---|\n")
    rows = table.partition("\n\n")[0].splitlines()
    assert len(rows) == lines
    for row in rows:
        code = re.findall("`([^`]+)`", row.split("|")[3])
        assert code, row
        assert all(part in source for part in code), row


def test_the_code_beside_cfls_lines_is_in_the_files_named() -> None:
    page = (ROOT / "docs" / "methods" / "cfl.md").read_text()
    _, _, table = page.partition("| line | the paper | file | the code |\n|---|---|---|---|\n")
    rows = table.partition("\n\n")[0].splitlines()
    assert len(rows) == 14
    for row in rows:
        [file], [code] = (re.findall("`([^`]+)`", cell) for cell in row.split("|")[3:5])
        assert code in (ROOT / "src" / "coterie" / file).read_text(), row


@pytest.mark.parametrize("method", ["cfl", "ifca", "fedcuau", "flt"])
def test_a_papers_file_is_short(method: str) -> None:
    source = (ROOT / "src" / "coterie" / "methods" / f"{method}.py").read_text()
    assert len(source.splitlines()) <= 150
