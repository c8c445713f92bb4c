"""The recipe of private CFL: a run says what it split, a search finds a number and no key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.privacy import make_key, new_key
from coterie_recipes import private_cfl
from coterie_recipes.base import Study


def test_a_run_tells_its_splits_and_its_bytes() -> None:
    clear, hidden = (
        private_cfl.measure("digits-permuted", way, 0, None, rounds=5) for way in ("in the clear", "s = 1024")
    )
    assert hidden["clusters"] == clear["clusters"]
    [(_, cluster, sides)] = clear["splits"]  # four groups are found at once
    assert (cluster, sorted(sides)) == (0, clear["clusters"])
    assert hidden["splits"] == clear["splits"]
    assert hidden["bytes_up"] != clear["bytes_up"]
    assert hidden["faults"] == 0


def test_the_search_finds_a_number_and_no_key() -> None:
    assert private_cfl.search(make_key(17), 20) == {"tries": 20, "found": [17]}
    assert private_cfl.search(new_key(), 20) == {"tries": 20, "found": []}


def test_the_table_compares_every_private_run_with_the_clear_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cells(self: Study, jobs: dict[str, Any]) -> dict[str, Any]:
        splits = [[5, 0, [["a", "b"], ["c"]]], [9, 1, [["a"], ["b"]]]]
        other = [[5, 0, [["a"], ["b", "c"]]], [9, 2, [["b"], ["c"]]]]
        same = {"splits": splits, "clusters": [["a"], ["b"], ["c"]], "ari": 1.0, "accuracy": 0.5, "bytes_up": 4}
        return {name: same | ({"splits": other, "bytes_up": 6} if "4096" in name else {}) for name in jobs}

    monkeypatch.setattr(Study, "cells", cells)
    monkeypatch.setattr(private_cfl, "TRIES", 2)
    rows = {(row.setting, row.measure): row.ours for row in private_cfl.private_cfl(Study(tmp_path)).rows}
    assert rows["digits-swapped, s = 1024", "same tree"] == [1.0]
    assert rows["digits-swapped, s = 4096", "same tree"] == [0.0]
    assert rows["digits-swapped, s = 4096", "same clusters"] == [1.0]
    assert rows["digits-swapped, s = 4096", "bytes up, over the clear run's"] == [1.5]
