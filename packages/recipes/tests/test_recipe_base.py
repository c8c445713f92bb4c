"""Recipes keep their cells, resume where they stopped, and never mix."""

from __future__ import annotations

import json

import pytest

from coterie.errors import ConfigError, RunError
from coterie_recipes import base
from coterie_recipes.base import Findings, Row, Study, find_recipe, recipe, reproduce


@pytest.fixture
def counted(monkeypatch):
    """Two throw-away recipes; the list of the cells that were really computed."""
    monkeypatch.setattr(base, "_RECIPES", {})
    computed = []

    def cell(study, key, value):
        def compute():
            if value is None:
                raise KeyboardInterrupt
            computed.append(key)
            return {"value": value}

        return study.cell(key, compute)["value"]

    @recipe("toy-table", "a table")
    def toy_table(study):
        values = [cell(study, f"a seed={seed}", 0.5 + seed) for seed in study.seeds]
        return Findings(
            [Row("iid", "accuracy", values, 0.75), Row("skew", "loss", [cell(study, "b", stop.get("b", 2.0))])],
            ["a difference"],
            {"curve": lambda figure: figure.subplots().plot([1, 2])},
        )

    @recipe("other", "another")
    def other(study):
        return Findings([])

    stop = {}
    return computed, stop


def test_results_and_table(tmp_path, counted):
    results = reproduce("toy-table", Study(tmp_path / "r", seeds=2))
    assert results["rows"][0]["ours"] == {"mean": 1.0, "std": 0.5, "values": [0.5, 1.5]}
    assert json.loads((tmp_path / "r" / "results.json").read_text()) == results
    assert (tmp_path / "r" / "table.md").read_text() == (
        "# toy-table: a table\n\nScale quick, seeds 0, 1.\n\n"
        "| setting | measure | ours (mean ± std) | paper |\n|---|---|---|---|\n"
        "| iid | accuracy | 1 ± 0.5 | 0.75 |\n| skew | loss | 2 |  |\n\n* a difference\n"
    )
    assert (tmp_path / "r" / "curve.png").stat().st_size > 1000


def test_cells_are_kept_and_an_interrupted_recipe_resumes(tmp_path, counted):
    computed, stop = counted
    stop["b"] = None
    with pytest.raises(KeyboardInterrupt):
        reproduce("toy-table", Study(tmp_path))
    assert computed == ["a seed=0"]
    assert not (tmp_path / "table.md").exists()
    stop.clear()
    logged = []
    study = Study(tmp_path, seeds=2, log=logged.append)
    reproduce("toy-table", study)
    assert computed == ["a seed=0", "a seed=1", "b"]
    assert logged == ["a seed=0: reused", "a seed=1: running", "b: running"]
    assert study.computed == 2


def test_keys_that_differ_in_odd_characters_only_are_two_cells(tmp_path):
    study = Study(tmp_path)
    assert study.cell("k/1", lambda: {"v": 1}) == {"v": 1}
    assert study.cell("k 1", lambda: {"v": 2}) == {"v": 2}
    assert study.cell("k-1", lambda: {"v": 3}) == {"v": 3}
    assert study.cell("k/1", lambda: {"v": 4}) == {"v": 1}


def test_a_folder_of_another_recipe_scale_or_owner_is_refused(tmp_path, counted):
    reproduce("toy-table", Study(tmp_path / "r"))
    before = {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()}
    with pytest.raises(RunError, match="holds toy-table at scale quick"):
        reproduce("other", Study(tmp_path / "r"))
    with pytest.raises(RunError, match="choose another folder"):
        reproduce("toy-table", Study(tmp_path / "r", scale="full"))
    assert before == {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(RunError, match="not empty and belongs to no recipe"):
        reproduce("other", Study(tmp_path / "mine"))


def test_damage_is_named(tmp_path, counted):
    reproduce("toy-table", Study(tmp_path))
    (tmp_path / "cells" / "b.json").write_text("{")
    with pytest.raises(RunError, match=r"b\.json: damaged"):
        reproduce("toy-table", Study(tmp_path))
    (tmp_path / "recipe.json").write_text("")
    with pytest.raises(RunError, match=r"recipe\.json: damaged"):
        reproduce("toy-table", Study(tmp_path))


def test_unknown_recipe(counted):
    with pytest.raises(ConfigError, match="did you mean 'toy-table'"):
        find_recipe("toy-tabel")
