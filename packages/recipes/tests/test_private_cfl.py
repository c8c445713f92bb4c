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
    for made in (clear, hidden):
        assert [split[0] for split in made["splits"]] == [5, 5, 5]
        # Which of four groups that are equally far apart goes first is a toss-up; no side ever holds a part of one.
        for side in (set(side) for split in made["splits"] for side in split[2]):
            assert all(side >= set(group) or side.isdisjoint(group) for group in made["clusters"])
    assert hidden["bytes_up"] != clear["bytes_up"]


def test_the_search_finds_a_number_and_no_key() -> None:
    assert private_cfl.search(make_key(17), 20) == {"tries": 20, "found": [17]}
    assert private_cfl.search(new_key(), 20) == {"tries": 20, "found": []}


def test_the_table_compares_every_private_run_with_the_clear_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cells(self: Study, jobs: dict[str, Any]) -> dict[str, Any]:
        splits = [[5, 0, [["a", "b"], ["c"]]], [5, 1, [["a"], ["b"]]]]
        other = [[5, 0, [["a"], ["b", "c"]]], [5, 2, [["b"], ["c"]]]]
        later = [splits[0], [6, *splits[1][1:]]]
        same = {"splits": splits, "clusters": [["a"], ["b"], ["c"]], "ari": 1.0, "accuracy": 0.5, "bytes_up": 4}
        return {
            name: same
            | ({"splits": other, "bytes_up": 6} if "4096" in name else {})
            | ({"splits": later} if "secure" in name else {})
            for name in jobs
        }

    monkeypatch.setattr(Study, "cells", cells)
    monkeypatch.setattr(private_cfl, "TRIES", 2)
    rows = {(row.setting, row.measure): row.ours for row in private_cfl.private_cfl(Study(tmp_path)).rows}
    each, order = "same clusters after every round", "same order within rounds too"
    assert rows["digits-swapped, s = 1024", each] == rows["digits-swapped, s = 1024", order] == [1.0]
    assert (rows["digits-swapped, s = 4096", each], rows["digits-swapped, s = 4096", order]) == ([1.0], [0.0])
    assert rows["digits-swapped, s = 1024, secure sums", each] == [0.0]
    assert rows["digits-swapped, s = 4096", "same clusters"] == [1.0]
    assert rows["digits-swapped, s = 4096", "bytes up, over the clear run's"] == [1.5]
