"""A short run of the fuzzer; `make fuzz` does a long one."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.errors import ConfigError

from . import harness
from .harness import Finding, Target, Trial, fuzz
from .targets import TARGETS

CASES = 15
"""Cases for each target, about a hundred in all."""


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_nothing_is_found(target: Target, tmp_path: Path) -> None:
    outcome = fuzz(target, range(CASES), 0, tmp_path)
    assert outcome.findings == []
    assert sum(outcome.counts.values()) == CASES


class Made:
    """A target that does as it is told."""

    name = "made"

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[Trial]:
        turns = iter(["fine", "refused", "silent", "error", "hang", "other"])

        def trial(random: random.Random) -> str:
            turn = next(turns)
            if turn == "refused":
                raise ConfigError("not that")
            if turn == "silent":
                raise ConfigError("")
            if turn == "error":
                raise KeyError("a bug")
            if turn == "hang":
                time.sleep(30)
            if turn == "other":
                raise Finding("another result")
            return turn

        yield trial


def test_every_kind_of_finding_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "SECONDS", 0.05)
    outcome = fuzz(Made(), range(6), 7, tmp_path)
    assert outcome.counts == {"fine": 1, "refused": 1, "found": 4}
    assert [finding.split(":")[0] for finding in outcome.findings] == [
        "FOUND a refusal without a word\n    PYTHONPATH=tests python -m fuzz --target made --seed 7 --case 2",
        "FOUND KeyError",
        "FOUND a hang",
        "FOUND another result\n    PYTHONPATH=tests python -m fuzz --target made --seed 7 --case 5",
    ]
