"""The command: a table, a file, exit codes, a method of another package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.cli import main
from coterie.methods import base
from coterie_conformance.doubles_others import PlainPACFL
from coterie_conformance.page import with_tables
from coterie_conformance.slips import SLIPS


def run(*words: str) -> int:
    try:
        main(["conformance", *words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_a_method_that_passes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    assert run("fedavg", "--check", "partition", "--check", "signs", "--json", str(file)) == 0
    out = capfd.readouterr().out.splitlines()
    assert out[0].split() == ["A", "1", "ok", "0", "fail", "1", "–", "fedavg"]
    assert [line.split() for line in out[3:5]] == [["partition", "+"], ["signs", "–"]]
    stored = json.loads(file.read_text())
    assert stored["findings"] == {
        "fedavg": {"ok": ["partition"], "does not apply": {"signs": "no client sends orthonormal vectors"}, "fails": {}}
    }
    assert stored["command"] == "coterie conformance fedavg --check 'partition' --check 'signs'"


def test_a_method_of_another_package_that_fails(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slipped(PlainPACFL):
        def __init__(self) -> None:
            super().__init__("entrywise arccos")

    monkeypatch.setitem(base._METHODS, "slipped", Slipped)
    assert run("slipped", "--check", "signs", "--check", "partition") == 1
    out = capfd.readouterr().out
    assert "slipped: signs: 8 clients' vectors with other signs: other clusters" in out


def test_wrong_names_are_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("fedavg", "--check", "partitoin") != 0
    assert "did you mean 'partition'" in capfd.readouterr().err
    assert run("fedavgg") != 0
    assert "unknown method 'fedavgg'" in capfd.readouterr().err


def test_the_checks_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    assert "finds: CFL's index slip" in capfd.readouterr().out


def test_the_page_says_what_is_stored_and_what_the_checks_are() -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "conformance.md").read_text(encoding="utf-8")
    stored = json.loads((root / "docs" / "results" / "conformance.json").read_text(encoding="utf-8"))
    assert with_tables(page, stored) == page
    assert [row["slip"] for row in stored["slips"]] == [slip.name for slip in SLIPS for _ in slip.where]
    assert not [found["fails"] for found in stored["findings"].values() if found["fails"]]
    assert with_tables(page, stored | {"slips": stored["slips"][:1]}) != page
