"""The recipe that judges advice: its federations, regret by hand, and one federation from probe to score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie_recipes import advise_regret
from coterie_recipes.advise_federations import JUDGED, KINDS, class_rings, draw, federation_of
from coterie_recipes.base import Study


def test_consecutive_numbers_are_of_all_kinds_and_repeat() -> None:
    cases = [draw(number) for number in range(JUDGED, JUDGED + len(KINDS))]
    assert {case.kind for case in cases} == set(KINDS)
    assert cases == [draw(case.number) for case in cases]
    assert all(case.clients <= 16 for case in cases if case.data in ("mnist", "fashion"))
    assert [draw(number).kind for number in (0, 1, 13)] == ["iid", "dirichlet 0.1", "iid"]


def test_every_class_has_a_group() -> None:
    plain, ring = (class_rings(4, 3, overlap=overlap) for overlap in (False, True))
    assert sorted(c for own in plain for c in own) == list(range(10))
    assert all(set(ring[i]) & set(ring[(i + 1) % 4]) for i in range(4))


def test_a_federation_has_the_samples_that_were_asked_for() -> None:
    case = next(c for c in map(draw, range(200)) if c.data == "digits" and c.kind == "permuted" and c.samples)
    federation = federation_of(case, None)
    assert {len(client.train) for client in federation} == {case.samples}
    assert len(federation) == case.clients


def cell(**scores: float) -> dict[str, Any]:
    reached = {name: {"score": score, "cpu_seconds": 2.0} for name, score in scores.items()}
    reached["flt"] = {"refused": "no images"}  # type: ignore[assignment]
    return {"federation": "1: x", "advised": "ditto", "probe_cpu_seconds": 0.1, "reached": reached}


def test_regret_by_hand() -> None:
    found = advise_regret.regret_of(cell(fedavg=80.0, ditto=84.0, cfl=85.5))
    assert found["regret"] == pytest.approx(1.5)
    assert found["gain"] == pytest.approx(4)
    assert found["fedavg_regret"] == pytest.approx(5.5)
    assert found["share"] == pytest.approx(0.05)


def test_misses_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cells(self: Study, jobs: dict[str, Any]) -> dict[str, Any]:
        return {key: cell(fedavg=80.0, ditto=79.0) for key in jobs}

    monkeypatch.setattr(Study, "cells", cells)
    first = next(number for number in range(100) if draw(number).data == "digits")
    found = advise_regret.advise_regret(Study(tmp_path, first_seed=first))
    assert "missed: 1: x: ditto advised" in found.notes[0]
    assert {row.measure: row.ours for row in found.rows}["mean regret"] == [pytest.approx(1)]


def test_one_federation_from_probe_to_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advise_regret, "CANDIDATES", ("fedavg", "local"))
    number = next(
        n for n in range(200) if draw(n).data == "digits" and draw(n).kind == "permuted" and draw(n).clients < 20
    )
    found = advise_regret.judge(number, None)
    assert found["advised"] == f"ifca:k={draw(number).groups}"
    numbers = advise_regret.regret_of(found)
    assert numbers["gain"] > 10
    assert numbers["regret"] < 3
