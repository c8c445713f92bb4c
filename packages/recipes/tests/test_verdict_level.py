"""The recipe that holds the verdict to its level: what it counts, by hand, and two runs on each kind of federation."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie_recipes import verdict_level
from coterie_recipes.base import Study
from coterie_recipes.verdict_level import called_different


def test_pairs_that_are_called_different_by_hand() -> None:
    def cell(accuracy: list[float]) -> dict[str, object]:
        names = [f"c{i}" for i in range(len(accuracy))]
        values = dict(zip(names, accuracy, strict=True))
        return {"accuracy": values, "loss": {}, "samples": dict.fromkeys(names, 50), "train": 1000}

    low, again, high = cell([0.50, 0.52, 0.51]), cell([0.51, 0.50, 0.52]), cell([0.90, 0.91, 0.92])
    assert called_different([low, again]) == 0.0
    assert called_different([low, again, high]) == pytest.approx(2 / 3)


def test_every_setting_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_level, "SETTINGS", (("digits:permuted(4)", "fedavg", 8, 20),))
    monkeypatch.setattr(verdict_level, "ROUNDS", 2)
    found = verdict_level.verdict_level(Study(tmp_path, seeds=2, workers=1))
    assert len(found.rows) == 1 + 6 + 1
    assert "1 pairs of each setting" in found.notes[0]
    assert all(0 <= row.ours[0] <= 1 for row in found.rows)
