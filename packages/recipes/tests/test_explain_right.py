"""The recipe that judges explain: a run whose difference is known, and the shares by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie_recipes import explain_right
from coterie_recipes.base import Study


def test_twelve_seeds_see_every_setting() -> None:
    found = [tuple(explain_right.settings_of(seed).values()) for seed in range(100, 112)]
    assert {setting[0] for setting in found} == {2, 4}
    assert len(set(found)) == 8


def test_a_run_on_swapped_digits_is_judged_by_the_true_swap() -> None:
    found = explain_right.explain_digits("swapped", 0)
    assert found["pairs"][0]["expected"] == "labels"
    assert found["pairs"][0]["entries"] in (3, 4)
    assert found["pairs"][0]["right"] == found["pairs"][0]["entries"]
    assert found["pairs"][0]["wrong"] == 0
    assert "are swapped" in found["words"][0]


def test_the_table_counts_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cells(self: Study, jobs: dict[str, Any]) -> dict[str, Any]:
        pair = {"kind": "labels", "expected": "labels", "entries": 4, "right": 3, "wrong": 1}
        alike = {"kind": "alike", "expected": "alike", "entries": 0, "right": 0, "wrong": 0}
        return {key: {"pairs": [pair, alike], "words": ["so"]} for key in jobs}

    monkeypatch.setattr(Study, "cells", cells)
    found = explain_right.explain_right(Study(tmp_path, seeds=2))
    ours = {(row.setting.split(",")[0], row.measure): row.ours for row in found.rows}
    assert ours["digits-swapped", "changed labels that are named rightly"] == [pytest.approx(0.75)]
    assert ours["digits-swapped", "labels that are named wrongly, per pair"] == [pytest.approx(1)]
    assert ("digits-rotated", "called a difference of inputs") not in ours
    assert "digits-permuted: 2 pairs of clusters of one group, 2 called alike" in found.notes
