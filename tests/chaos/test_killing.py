"""A kill at any moment, then `coterie resume`: the models of the uninterrupted run, bit for bit."""

from __future__ import annotations

from pathlib import Path

from .killing import kill_at_random_moments, survives


def test_a_run_that_is_killed_at_random_moments_resumes_bit_for_bit(tmp_path: Path) -> None:
    survives(kill_at_random_moments, tmp_path)
