"""Learning-rate schedules worked by hand."""

from __future__ import annotations

import pytest

from coterie.errors import ConfigError
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule

TRAINING = Training(lr=0.1, epochs=2, momentum=0.5)


def rates(spec, rounds=5):
    schedule = make_schedule(spec, TRAINING, rounds)
    return [schedule.at(t).lr for t in range(1, rounds + 1)]


def test_by_hand():
    assert rates("constant") == [0.1] * 5
    assert rates("step:0.1@3@5") == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])
    assert rates("decay:0.5") == pytest.approx([0.1, 0.05, 0.025, 0.0125, 0.00625])
    assert rates("exponential:0.001") == pytest.approx([0.1, 0.1 * 10**-0.5, 0.01, 0.01 * 10**-0.5, 0.001])
    assert rates("exponential:0.001", rounds=1) == [0.1]


def test_only_the_step_size_changes():
    at = make_schedule("decay:0.5", TRAINING, 5).at(2)
    assert (at.epochs, at.momentum) == (2, 0.5)


@pytest.mark.parametrize(
    "spec",
    ["constnt", "constant:1", "step:0.1", "step:x@3", "step:0.1@x", "step:0.1@0", "decay", "decay:0", "decay:-1",
     "decay:nan", "decay:inf", "decay:0.9@3", "exponential:", ""],
)  # fmt: skip
def test_misspelt_schedules_say_what_is_expected(spec):
    with pytest.raises(ConfigError, match="lr_schedule="):
        make_schedule(spec, TRAINING, 5)
