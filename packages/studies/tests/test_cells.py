"""Cells: what was computed is kept, also when a later one fails, and workers stay from one call to the next."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path

import pytest

from coterie.errors import RunError
from coterie_studies import Cells


def test_what_is_kept_is_not_computed_again(tmp_path: Path) -> None:
    lines: list[str] = []
    cells = Cells(tmp_path / "cells", log=lines.append)
    assert cells.one("a", lambda: {"v": 1}) == {"v": 1}
    assert cells.one("a", lambda: {"v": 2}) == {"v": 1}
    assert (lines, cells.computed) == (["a: running", "a: reused"], 1)
    assert cells.one("a/b", lambda: {"v": 3}) == {"v": 3}
    assert cells.one("a b", lambda: {"v": 4}) == {"v": 4}
    (tmp_path / "cells/a.json").write_text("{")
    with pytest.raises(RunError, match=r"a\.json: damaged"):
        cells.kept("a")


def test_jobs_go_to_workers_that_stay_and_what_is_done_before_a_failure_is_kept(tmp_path: Path) -> None:
    lines: list[str] = []
    with Cells(tmp_path, workers=1, log=lines.append) as cells:
        first = cells.many({"who": partial(_who), "b": partial(dict, v=2)})
        assert first["who"]["pid"] != os.getpid()
        assert cells.many({"again": partial(_who)})["again"] == first["who"]
        with pytest.raises(ValueError, match="invalid literal"):
            cells.many({"b": partial(int, "x"), "c": partial(dict, v=3), "bad": partial(int, "x")})
    assert json.loads((tmp_path / "c.json").read_text()) == {"v": 3}
    assert "1 of 3 are kept from before" in lines
    assert not (tmp_path / "bad.json").exists()
    assert cells.computed == 4


def test_after_a_failure_nothing_more_is_begun(tmp_path: Path) -> None:
    with Cells(tmp_path, workers=1) as cells:
        cells.many({"started": partial(_who)})
        slow = {f"slow-{i}": partial(_slow, i) for i in range(8)}
        with pytest.raises(ValueError, match="invalid literal"):
            cells.many({"bad": partial(int, "x"), **slow})
    kept = sorted(path.name for path in tmp_path.glob("slow-*"))
    assert kept == sorted(f"slow-{i}.json" for i in range(len(kept)))
    assert len(kept) <= 3  # what had reached the worker, or its queue


def _slow(number: int) -> dict[str, int]:
    time.sleep(0.2)
    return {"number": number}


def _who() -> dict[str, int]:
    return {"pid": os.getpid()}
