"""The notebooks of the manual run from top to bottom, and print what is stored in them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from printed_pages import ROOT, Reader

nbformat = pytest.importorskip("nbformat", reason="needs coterie[docs]")

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[Any]:
    """The cells with code."""
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def without_numbers(text: str) -> str:
    """What was printed, but for numbers, whose last digits may differ between processors."""
    return re.sub(r"\d[\d.e+-]*", "#", text)


@pytest.fixture
def reader(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    """An empty folder, and a module for the cells; no window opens, and the methods they define are forgotten."""
    from coterie.methods import base

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    methods = dict(base._METHODS)
    found = Reader(request.param)
    yield found
    found.close()
    base._METHODS.clear()
    base._METHODS.update(methods)


@pytest.mark.parametrize("reader", NOTEBOOKS, ids=lambda path: path.stem, indirect=True)
def test_a_notebook_prints_what_is_stored(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, which saves the start of a kernel: lines for the notebook itself (%…) are left out."""
    for number, cell in enumerate(code_cells(reader.page), start=1):
        code = re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE)
        reader.run_python(code, f"{reader.page.name}, cell {number}")
        stored = "".join(output.text for output in cell.outputs if output.output_type == "stream")
        assert without_numbers(capsys.readouterr().out) == without_numbers(stored)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_installs_what_is_missing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, called = code_cells(path)[0].source, []
    monkeypatch.setattr(subprocess, "run", lambda words, **_: called.append(words[-1]))
    exec(first, {})
    assert called == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    exec(first, {})
    [asked] = called
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert asked.partition("[")[0] == "coterie"
    assert set(re.findall(r"\w+", asked)[1:]) <= set(project["optional-dependencies"])


def test_all_are_stored_as_they_ran() -> None:
    assert {"comparing", "own-data", "own-method", "to-flower"} <= {path.stem for path in NOTEBOOKS}
    for path in NOTEBOOKS:
        cells = code_cells(path)
        assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), path.stem
        assert not [o for cell in cells for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]
