"""What a round costs does not grow with the rounds before it: function calls are counted, not seconds."""

from __future__ import annotations

import gc
import math
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import coterie
from coterie.runs.records import RoundRecord
from coterie.runs.stopping import ExplosionWatch


class CallCounter(coterie.Callback):
    """Counts every call, of Python and of C functions, between the ends of two rounds."""

    def __init__(self) -> None:
        self.calls, self.rounds = 0, list[int]()

    def count(self, frame: FrameType, event: str, arg: Any) -> None:
        self.calls += event in ("call", "c_call")

    def on_round(self, record: RoundRecord) -> None:
        self.rounds.append(self.calls)
        self.calls = 0


@pytest.mark.parametrize("method", ["fedavg", "ifca:k=2"])
@pytest.mark.parametrize("stored", [False, True])
def test_a_late_round_makes_as_many_calls_as_an_early_one(method: str, stored: bool, tmp_path: Path) -> None:
    counter = CallCounter()
    out = tmp_path / "run" if stored else None
    before = sys.getprofile()
    gc.disable()  # a collection calls the finalisers of whatever it finds
    sys.setprofile(counter.count)
    try:
        coterie.run(
            method,
            scenario="digits-iid",
            clients=4,
            samples=40,
            rounds=60,
            callbacks=[counter],
            out=out,
            progress=False,
        )
    finally:
        sys.setprofile(before)
        gc.enable()
    early, late = sorted(counter.rounds[10:20]), sorted(counter.rounds[-11:-1])
    # Medians: rounds with a checkpoint, which the clock decides, are few.
    assert late[5] <= early[5]


def test_a_watch_knows_what_a_resumed_run_has_seen() -> None:
    watch = ExplosionWatch(0, [])
    assert watch.event(2.0) is None
    assert watch.usual == 2.0
    assert watch.event(199.0) is None
    event = watch.event(201.0)
    assert event is not None
    assert event.details == {"loss": 201.0, "usual": 2.0}
    assert watch.event(1e9) is None
    assert ExplosionWatch(10, []).event(math.log(10) * 101) is not None
    assert ExplosionWatch(0, []).event(math.inf) is not None
