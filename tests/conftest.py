"""Settings for every test: one thread, reproducible hypothesis runs, no data folder of the machine."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import torch

from coterie.methods.splitting.judging import Steps
from coterie.trainers.devices import bfloat16_support

torch.set_num_threads(1)
hypothesis.settings.register_profile("coterie", deadline=None, max_examples=30, derandomize=True, database=None)
hypothesis.settings.load_profile("coterie")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what computes in bfloat16 where it does not work: it would end or poison this whole process."""
    if item.get_closest_marker("bfloat16") and bfloat16_support() == "broken":
        pytest.skip("bfloat16 does not work on this processor")


@pytest.fixture
def unshortened_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let CFL in the clear shorten no half-update, as it can shorten no hidden one: both then give the same models."""
    prepare = Steps.__init__

    def prepare_unshortened(self: Steps, *given: Any) -> None:
        prepare(self, *given)
        self.shrink = torch.ones(2, len(self.weights), dtype=torch.float64)

    monkeypatch.setattr(Steps, "__init__", prepare_unshortened)
