"""The command `coterie reproduce`: it lists recipes, runs one, and fails with one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.cli import main
from coterie_recipes import Findings, Row, Study, base, list_recipes

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run the command in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(list(words))
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def test_without_a_name_the_recipes_are_listed(coterie: Call) -> None:
    code, out, _ = coterie("reproduce")
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()[1:]]
    assert names == [recipe.name for recipe in list_recipes()]
    assert len(names) >= 43


def test_a_recipe_is_run_with_the_options_given(coterie: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies: list[Study] = []

    def toy(study: Study) -> Findings:
        studies.append(study)
        cells = [study.cell(f"seed{seed}", lambda: {"value": 0.5}) for seed in study.seeds]
        return Findings([Row("iid", "accuracy", [cell["value"] for cell in cells], 0.75)])

    monkeypatch.setattr(base, "_RECIPES", {"toy": base.Recipe("toy", "a table", toy)})
    code, out, err = coterie("reproduce", "toy", "--seeds", "2", "--first-seed", "3", "--workers", "1")
    assert code == 0
    assert "| iid | accuracy | 0.5 ± 0 | 0.75 |" in out
    assert "seed3: running" in err
    assert (list(studies[0].seeds), studies[0].workers, studies[0].full) == ([3, 4], 1, False)
    assert json.loads((tmp_path / "runs" / "toy-quick" / "results.json").read_text())["seeds"] == [3, 4]
    code, out, err = coterie("reproduce", "toy", "--scale", "full", "--out", "here", "--quiet")
    assert (code, out, err) == (0, "", "")
    assert studies[1].full
    assert (tmp_path / "here" / "table.md").exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["cfl-toys"], "did you mean 'cfl-toy'"),
        (["--scale", "huge", "cfl-toy"], "quick"),
        (["cfl-toy", "--workers", "none"], "a number of processes, or 'auto'"),
        (["cfl-toy", "--workers", "0"], "a number of processes, or 'auto'"),
        (["cfl-toy", "--seeds", "0"], "0"),
    ],
)
def test_bad_input_fails_with_one_line(coterie: Call, tmp_path: Path, words: list[str], hint: str) -> None:
    code, out, err = coterie("reproduce", *words)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert hint in err
    assert not list(tmp_path.iterdir())


def test_results_are_stored_with_what_made_them_over_several_attempts(
    coterie: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def toy(study: Study) -> Findings:
        cells = [study.cell(f"seed{seed}", lambda seed=seed: {"value": seed / 3}) for seed in study.seeds]  # type: ignore[misc]
        return Findings([Row("iid", "accuracy", [cell["value"] for cell in cells], "≈ 1")], ["smaller"])

    monkeypatch.setattr(base, "_RECIPES", {"toy": base.Recipe("toy", "a table", toy)})
    coterie("reproduce", "toy", "--workers", "1", "--quiet")
    coterie("reproduce", "toy", "--workers", "1", "--seeds", "2", "--quiet")
    assert coterie("reproduce", "toy", "--workers", "1", "--seeds", "2", "--quiet", "--store", "s/toy.json")[0] == 0
    found = json.loads((tmp_path / "s" / "toy.json").read_text())
    assert found["command"] == "coterie reproduce toy --seeds 2 --workers 1"
    assert found["rows"] == [{"setting": "iid", "measure": "accuracy", "values": [0.0, 0.333333], "paper": "≈ 1"}]
    assert found["notes"] == ["smaller"]
    attempts = json.loads((tmp_path / "runs" / "toy-quick" / "attempts.json").read_text())
    assert len(attempts) == 2  # the third computed nothing
    assert found["cpu_seconds"] == round(sum(attempt["cpu_seconds"] for attempt in attempts), 1)
    assert found["commit"] == attempts[0]["commit"]
    (tmp_path / "runs" / "toy-quick" / "attempts.json").unlink()
    code, _, err = coterie("reproduce", "toy", "--workers", "1", "--seeds", "2", "--quiet", "--store", "s/toy.json")
    assert code != 0
    assert "says nothing of what computed its cells" in err
