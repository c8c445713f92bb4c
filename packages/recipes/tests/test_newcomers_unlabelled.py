"""Newcomers without labels: shares of answers by hand, and one cell for real."""

from __future__ import annotations

import pytest

from coterie_inference.unlabelled import InputFit
from coterie_recipes.newcomers_unlabelled import ANSWERS, _shares, placed


def fit(cluster: int | None, *, alarm: bool = False) -> InputFit:
    return InputFit("", cluster, {}, 1.0, alarm, "")


def test_shares_by_hand() -> None:
    fits = {"a": fit(1), "b": fit(1), "c": fit(None), "d": fit(None, alarm=True)}
    assert _shares(fits, {"a": 1, "b": 0, "c": 0, "d": 0}) == dict.fromkeys(ANSWERS, 0.25)
    assert _shares({"a": fit(0)}, {"a": None})["wrong"] == 1.0  # its group has no founder


@pytest.mark.parametrize(("scenario", "answer"), [("digits-rotated", "right"), ("digits-swapped", "not placed")])
def test_a_cell(scenario: str, answer: str) -> None:
    found = placed(scenario, 1, None)
    assert found["newcomers"][answer] >= 0.9
    assert found["strangers"]["alarm"] >= 0.9
