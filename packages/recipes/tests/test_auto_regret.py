"""The recipe that judges method auto: its federations, regret by hand, and one federation by two methods."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie_recipes import auto_regret
from coterie_recipes.auto_regret import KINDS, draw, measure, regrets
from coterie_recipes.base import Study


def test_consecutive_numbers_are_of_all_kinds_and_repeat() -> None:
    cases = [draw(number) for number in range(1000, 1000 + len(KINDS))]
    assert len(KINDS) >= 30
    assert len({(c.scenario.split(":")[-1], c.clients in (2, 6, 100), str(c.training)) for c in cases}) == len(KINDS)
    assert cases == [draw(case.number) for case in cases]


def test_regret_by_hand() -> None:
    found = regrets({"auto": 84.0, "fedavg": 80.0, "cfl": 85.5, "groups": 90.0})
    assert found == {"auto": 1.5, "fedavg": 5.5, "cfl": 0.0, "groups": -4.5}


def test_one_federation_resumes_cell_by_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_regret, "METHODS", ("auto", "fedavg"))
    number = next(n for n in range(500) if draw(n).scenario == "digits:swapped(2)" and draw(n).clients == 2)
    study = Study(tmp_path, first_seed=number, workers=1)
    found = auto_regret.auto_regret(study)
    assert study.computed == 3
    assert {row.measure: row.ours for row in found.rows}["regret of auto"] == [0.0]
    again = Study(tmp_path, first_seed=number, workers=1)
    auto_regret.auto_regret(again)
    assert again.computed == 0


def test_what_cannot_run_is_listed(tmp_path: Path) -> None:
    number = next(n for n in range(500) if draw(n).scenario == "hsb82")
    assert "is not in" in measure(number, "auto", str(tmp_path), 2)["refused"]
