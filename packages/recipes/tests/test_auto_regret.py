"""The recipe that judges method auto: its federations, regret by hand, and one federation by two methods."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.errors import CoterieError
from coterie.models import list_models
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule
from coterie_recipes import auto_regret
from coterie_recipes.auto_regret import KINDS, draw, measure, regrets, summary
from coterie_recipes.base import Study


def test_consecutive_numbers_are_of_all_kinds_and_repeat() -> None:
    cases = [draw(number) for number in range(1000, 1000 + len(KINDS))]
    assert len(KINDS) >= 30
    assert len({(c.scenario.split(":")[-1], c.clients in (2, 6, 100), str(c.training)) for c in cases}) == len(KINDS)
    assert cases == [draw(case.number) for case in cases]


def test_what_kinds_ask_for_exists() -> None:
    for kind in KINDS:
        make_schedule(kind.training.get("lr_schedule", "constant"), Training(), 30)
        assert kind.training.get("model", "mlp") in {model.name for model in list_models()}


def test_regret_by_hand() -> None:
    found = regrets(
        {"auto": {"score": 84.0}, "fedavg": {"score": 80.0}, "cfl": {"score": 85.5}, "groups": {"score": 90.0}}
    )
    assert found == {"auto": 1.5, "fedavg": 5.5, "cfl": 0.0, "groups": -4.5}


def test_what_all_federations_say_by_hand() -> None:
    def cell(scores: list[float], clusters: int = 1, cpu: float = 1.0) -> dict[str, object]:
        return {"score": sum(scores) / 3, "scores": scores, "clusters": clusters, "cpu": cpu, "bytes": 10}

    helped = {"auto": cell([90, 91, 89], 2, 9.0), "fedavg": cell([50, 51, 52]), "groups": cell([91, 92, 90])}
    lost = {"auto": cell([50, 51, 52], 1, 2.0), "fedavg": cell([60, 61, 62.5])}
    found = {(method, what): value for method, what, value in summary({11: helped, 0: lost})}
    assert found["auto", "mean regret"] == pytest.approx((183.5 - 153) / 3 / 2)
    assert found["auto", "share within 2 of known groups, where these surely help"] == 1.0
    assert found["fedavg", "share within 2 of known groups, where these surely help"] == 0.0
    assert ":rotated(2)" in draw(11).scenario
    assert found["auto", "share within 2 of known groups, where these surely help and differ in inputs too"] == 1.0
    assert ":swapped(2)" in draw(9).scenario
    assert not [what for _, what, _ in summary({9: helped, 0: lost}) if "inputs" in what]
    assert found["auto", "share surely below fedavg, where nothing is surely better"] == 1.0
    assert found["auto", "federations surely below fedavg by 3 points"] == 1.0
    assert found["auto", "median of cpu over fedavg's, where nothing is split"] == 2.0


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


def test_runs_whose_costs_are_compared_are_evaluated_after_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def run(method: object, federation: object, **how: object) -> None:
        asked[type(method).__name__] = how.get("evaluate_every")
        raise CoterieError("asked")

    monkeypatch.setattr(auto_regret, "run", run)
    number = next(n for n in range(500) if draw(n).scenario == "digits:swapped(2)" and draw(n).clients == 2)
    for method in ("auto", "fedavg", "cfl", "local", "flt"):
        measure(number, method, None, 30)
    assert asked == {"Auto": None, "FedAvg": None, "CFL": None, "Local": 30, "FLT": 30}


def test_what_cannot_run_is_listed(tmp_path: Path) -> None:
    number = next(n for n in range(500) if draw(n).scenario == "hsb82")
    assert "is not in" in measure(number, "auto", str(tmp_path), 2)["refused"]
