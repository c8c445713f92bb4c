"""A sample of the faults; `make chaos` does many.

It forks, and so runs in a process of its own: in this one may be threads of other tests, which a fork leaves behind.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .faults import FAULTS, damaged_file, file_size, full_disk, kill

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, limits and /proc are Linux's")
SAMPLE = (kill, full_disk, damaged_file)
SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import chaos.trials
{before}
for row in chaos.trials.chaos({numbers!r}, 0):
    print(row.name, dict(row.counts), row.lost)
"""


def outcomes(numbers: list[int], before: str = "") -> str:
    """What the faults came to, a line each."""
    script = SCRIPT.format(tests=str(Path(__file__).parents[1]), before=before, numbers=numbers)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_faults_of_several_kinds_are_survived() -> None:
    lines = outcomes([FAULTS.index(fault) for fault in SAMPLE]).splitlines()
    assert len(lines) == len(SAMPLE)
    assert all(line.endswith("[]") and "LOST" not in line for line in lines), lines


def test_another_result_is_found() -> None:
    line = outcomes([FAULTS.index(file_size)], "chaos.trials.told = lambda result: 'what no run gives'")
    assert "{'LOST': 1}" in line
    assert "python -m chaos --seed 0 --fault 5" in line
