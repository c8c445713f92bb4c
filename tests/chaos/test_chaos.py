"""A sample of the faults; `make chaos` does many."""

from __future__ import annotations

import sys

import pytest

from .faults import FAULTS, damaged_file, file_size, full_disk, kill, removed_file
from .trials import chaos

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, limits and /proc are Linux's")
SAMPLE = (kill, full_disk, file_size, damaged_file, removed_file)


def test_faults_of_several_kinds_are_survived() -> None:
    rows = chaos([FAULTS.index(fault) for fault in SAMPLE], 0)
    assert {row.name: row.lost for row in rows if row.lost} == {}
    assert sum(sum(row.counts.values()) for row in rows) == len(SAMPLE)


def test_another_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.trials.told", lambda result: "what no run gives")
    (row,) = chaos([FAULTS.index(file_size)], 0)
    assert row.counts == {"LOST": 1}
    assert row.lost == ["another result\n    PYTHONPATH=tests python -m chaos --seed 0 --fault 5"]
