"""The mutants of scripts/mutants.py: counted by hand, and tried on a package of one function."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import mutants

CODE = '''
def f(x: int = 1) -> int:
    """Text."""
    if x < 2 and not g(x):
        raise ValueError(f"{x + 1} is more than 3")
    print(min(x, -x))
    return x
'''
CHANGED = {
    "def f(x: int=2) -> int:",
    "if not (x < 2 and (not g(x))):",
    "if x < 2 or not g(x):",
    "if x <= 2 and (not g(x)):",
    "if x < 3 and (not g(x)):",
    "None",
    "print(max(x, -x))",
    "print(min(x, +x))",
}


def test_every_change_is_made_once_and_errors_and_types_stay() -> None:
    found = mutants.changes(ast.parse(CODE))
    assert sorted(change.texts()[1] for change in found) == sorted(CHANGED)
    texts = {mutants.mutated(CODE, number) for number in range(len(found))}
    assert len(texts | {ast.unparse(ast.parse(CODE))}) == len(CHANGED) + 1
    assert all('f"{x + 1} is more than 3"' in text.replace("'", '"') for text in texts)


def test_the_modules_that_are_changed_are_those_that_compute() -> None:
    assert {"methods/cfl.py", "privacy/user_level.py", "clustering/cosine.py", "runs/loop.py"} <= set(mutants.modules())
    assert all((mutants.ROOT / "tests" / test).exists() for test in mutants.TESTS)


def test_a_run_lists_survivors_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package, tests, out = tmp_path / "src" / "coterie", tmp_path / "tests" / "clustering", tmp_path / "found.json"
    (package / "clustering").mkdir(parents=True)
    tests.mkdir(parents=True)
    for folder in (package, package / "clustering"):
        (folder / "__init__.py").touch()
    (package / "clustering" / "signs.py").write_text(
        "def positive(x):\n    return x > 0\n\ndef unused(x):\n    return -x\n"
    )
    check = "from coterie.clustering.signs import positive\n\ndef test_signs():\n    assert positive(2)\n"
    (tests / "test_signs.py").write_text(check + "    assert not positive(-1)\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "SOURCE", tmp_path / "src")
    monkeypatch.setattr(mutants, "PRELOADED", ())
    words = ["--count", "9", "--out", str(out), "--map", str(tmp_path / "map")]
    mutants.main(words)
    assert {row["after"]: row["survived"] for row in json.loads(out.read_text())["mutants"]} == {
        "return x >= 0": True,
        "return x > 1": True,
        "return +x": True,
    }
    assert "0 of    3 killed" in capsys.readouterr().out
    (tests / "test_signs.py").write_text(check + "    assert positive(1) and not positive(0)\n")
    mutants.main(words)
    assert "2 of    3 killed, of 3 possible" in capsys.readouterr().out
    monkeypatch.setattr(mutants.Copy, "survives", None)  # nothing is tried again
    mutants.main(words)
    assert "2 of    3 killed, of 3 possible" in capsys.readouterr().out
