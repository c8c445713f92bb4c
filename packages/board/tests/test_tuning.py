"""The search of every method's tuning, on losses that are functions of the trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coterie_board.tuning import WIDEST, Trial, choose, over_seeds, search

Losses = Callable[[Trial], float]


def run_search(
    variants: Sequence[str], loss_of: Losses, *, higher: bool = False
) -> tuple[Trial | None, list[list[Trial]]]:
    """The chosen trial and what was asked in each turn; an infinite loss is a failure."""
    going, asked = search(variants, higher=higher), []
    try:
        trials = next(going)
        while True:
            asked.append(trials)
            losses = [loss_of(trial) for trial in trials]
            found: list[dict[str, Any]] = [
                {"failed": "diverged"} if math.isinf(loss) else {"value": loss, "loss": loss} for loss in losses
            ]
            trials = going.send(found)
    except StopIteration as done:
        return done.value, asked


def test_the_best_step_is_inside_of_those_tried() -> None:
    chosen, asked = run_search(["", "k=2"], lambda trial: (trial.step - 3) ** 2 + (trial.options == "k=2"))
    assert chosen == Trial("", 3)
    steps = [[trial.step for trial in trials] for trials in asked]
    assert steps == [[0, -1, 1], [2], [3], [4], [3]]  # up to the side of the best one, then the other variant there


def test_another_variant_is_tuned_again_where_it_is_best() -> None:
    best_of = {"k=auto": 0, "k=2": -2}
    chosen, asked = run_search(
        ["k=auto", "k=2"], lambda trial: (trial.step - best_of[trial.options]) ** 2 - 9 * (trial.options == "k=2")
    )
    assert chosen == Trial("k=2", -2)
    assert [trial for trials in asked for trial in trials].count(Trial("k=2", 0)) == 1  # nothing is run twice
    assert {trial.step for trials in asked for trial in trials if trial.options == "k=2"} == {1, 0, -1, -2, -3}


def test_a_step_that_diverges_is_the_end_on_that_side() -> None:
    chosen, asked = run_search([""], lambda trial: math.inf if trial.step > 0 else -trial.step)
    assert chosen == Trial("", 0)
    assert [trial.step for trials in asked for trial in trials] == [0, -1, 1]


def test_a_search_ends_where_more_is_always_better_and_where_all_fail() -> None:
    chosen, _ = run_search([""], lambda trial: -trial.step)
    assert chosen == Trial("", WIDEST)
    chosen, asked = run_search(["", "k=2"], lambda trial: math.inf)
    assert chosen is None
    assert [len(trials) for trials in asked] == [3, 1]


def test_a_higher_metric_may_be_better() -> None:
    chosen, _ = run_search([""], lambda trial: -((trial.step - 1) ** 2), higher=True)
    assert chosen == Trial("", 1)


def test_steps_are_half_decades() -> None:
    assert [Trial("", step).rate(0.1) for step in (-2, -1, 0, 1, 2)] == pytest.approx([0.01, 0.03162, 0.1, 0.3162, 1.0])


def test_the_choice_is_the_best_by_the_metric_then_by_the_loss() -> None:
    trials: list[dict[str, Any]] = [
        {"value": 0.8, "loss": 0.5},
        {"value": 0.9, "loss": 0.5},
        {"value": 0.9, "loss": 0.4},
        {"value": 0.9, "loss": 0.4},
        {"failed": "diverged"},
    ]
    assert choose(trials, higher=True) == 2
    assert choose(trials, higher=False) == 0
    assert choose([{"failed": "a"}, {"failed": "b"}], higher=True) is None


def test_a_trial_is_the_mean_over_its_seeds_and_fails_with_one() -> None:
    first, second = {"value": 0.5, "loss": 1.0, "cpu": 1.0}, {"value": 0.7, "loss": None, "cpu": 2.0}
    assert over_seeds([first, second]) == {"value": 0.6, "loss": 1.0, "cpu": 3.0}
    assert over_seeds([first, {"failed": "why", "cpu": 2.0}]) == {"failed": "why", "cpu": 3.0}
