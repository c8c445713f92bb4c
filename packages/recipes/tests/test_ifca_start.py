"""The recipe that measures IFCA's start: its federations, and the table from cells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coterie_recipes import ifca_start
from coterie_recipes.base import Study


@pytest.mark.parametrize(
    ("setting", "sizes"), [("permuted", [4, 4, 4, 4]), ("swapped", [4, 4, 4, 4]), ("unequal", [8, 4, 3, 1])]
)
def test_sixteen_clients_in_four_groups(setting: str, sizes: list[int]) -> None:
    federation = ifca_start.federation_of(setting, 3)
    counted = Counter(client.group for client in federation)
    assert [counted[group] for group in range(4)] == sizes
    assert len({len(client.train) for client in federation}) == 1


def test_the_table_counts_seeds_that_found_the_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cells(self: Study, jobs: dict[str, Any]) -> dict[str, Any]:
        aris = {"random": 0.5, "perturbed": 0.0, "k-means++": 1.0}
        one = {i: {"ari": ari, "models_in_use": 3, "accuracy": 0.5, "megabytes": 2.0} for i, ari in aris.items()}
        assert len(jobs) == 2 * 8
        return dict.fromkeys(jobs, one)

    monkeypatch.setattr(Study, "cells", cells)
    rows = ifca_start.ifca_start(Study(tmp_path, seeds=2)).rows
    exact = {row.setting: row.ours for row in rows if row.measure == "the four groups exactly"}
    assert len(exact) == 8 * 3
    assert exact["unequal, participation 0.3, k-means++"] == [1.0, 1.0]
    assert exact["rotated, participation 1, random"] == [0.0, 0.0]
    assert {row.measure: row.ours for row in rows[:5]}["accuracy %"] == [50.0, 50.0]


def test_one_federation_is_trained_from_every_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ifca_start, "ROUNDS", {1.0: 1})
    found = ifca_start.compare_starts("permuted", 1.0, 0)
    assert list(found) == ["random", "perturbed", "k-means++"]
    assert found["k-means++"]["megabytes"] > found["random"]["megabytes"]
