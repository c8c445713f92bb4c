"""A kill before any operation on files, then `coterie resume`: the models of the uninterrupted run, bit for bit."""

from __future__ import annotations

from pathlib import Path

from chaos.killing import kill_at_each_file_operation, survives


def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    survives(kill_at_each_file_operation, tmp_path)
