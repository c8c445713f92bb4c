"""The recipe on honest groups: groups with labels of their own, and the difference of two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.data import find_scenario
from coterie_recipes import honest_groups
from coterie_recipes.base import Study


def test_groups_have_the_same_images_and_labels_of_their_own() -> None:
    plain, made = find_scenario("digits-iid").build(clients=3, seed=5), honest_groups.grouped((2, 1), 5)
    assert [client.group for client in made] == [0, 0, 1]
    maps = []
    for before, after in zip(plain, made, strict=True):
        assert torch.equal(before.train.x, after.train.x)
        maps.append({(int(a), int(b)) for a, b in zip(before.train.y, after.train.y, strict=True)})
        assert len(maps[-1]) == len({a for a, _ in maps[-1]}) == len({b for _, b in maps[-1]})
    assert len(maps[0] | maps[1]) == 10
    assert len(maps[0] | maps[2]) > 10


def test_a_run_has_both_rules_and_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(honest_groups, "ROUNDS", 2)
    found = honest_groups.measure((3, 2), "ifca", 0)
    assert set(found) == {"default", "plain"}
    assert all(len(own["groups"]) == 2 and 0 <= own["mean"] <= 1 for own in found.values())


def test_rows_are_the_differences_in_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cells(self: Study, jobs: dict[str, Any]) -> dict[str, Any]:
        own = {"default": {"mean": 0.6, "groups": [0.9, 0.1]}, "plain": {"mean": 0.5, "groups": [0.6, 0.3]}}
        return dict.fromkeys(jobs, own)

    monkeypatch.setattr(Study, "cells", cells)
    rows = {(row.setting, row.measure): row.ours for row in honest_groups.honest_groups(Study(tmp_path)).rows}
    assert rows["8/8/4, cfl", "accuracy, default less plain, points"] == [pytest.approx(10.0)]
    assert rows["8/8/4, cfl", "the same of the group that loses most"] == [pytest.approx(-20.0)]
