"""A federation's rows: means, paired differences, ranks and failures, against numbers worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from coterie_board.board import Board
from coterie_board.federations import BoardFederation
from coterie_board.standings import rank, standings


def result(*values: float | str, cpu: float = 1.0) -> dict[str, Any]:
    """A method's results with a value per seed; a text is why a run failed."""
    rest = {"worst": 0.1, "variance": 0.01, "loss": 0.5, "ari": None, "clusters": 2, "rounds": 5, "passes": 100.0}
    rest |= {"bytes": 4_000_000, "cpu": cpu}
    runs = [
        {"seed": seed, **({"failed": value, "cpu": cpu} if isinstance(value, str) else {"value": value, **rest})}
        for seed, value in enumerate(values)
    ]
    return {"trials": [{"options": "k=2", "lr": 0.1, "value": 0.5, "cpu": cpu}], "choice": 0, "runs": runs}


def make_board(results: dict[str, dict[str, dict[str, Any]]], metric: str = "accuracy") -> Board:
    entries = [BoardFederation(name, "labels", "small", 5, metric=metric) for name in results]
    methods = list(next(iter(results.values())))
    return Board([0, 1, 2], entries, methods, results)


def test_ranks_share_what_is_equal_and_put_failures_last() -> None:
    assert rank([0.9, 0.5, 0.9, None, 0.7, None]) == [1.5, 4, 1.5, 5.5, 3, 5.5]


def test_differences_are_paired_by_seed_and_positive_where_better() -> None:
    rows = {"fedavg": result(0.5, 0.7, 0.9), "cfl": result(0.6, 0.8, 1.0), "ifca": result(0.4, 0.8, 0.9)}
    found = {one.method: one for one in standings(make_board({"a": rows}), make_board({"a": rows}).federations[0])}
    assert found["cfl"].gain == pytest.approx(0.1)
    assert found["cfl"].gain_half == pytest.approx(0, abs=1e-9)  # the seeds vary, the pairs do not
    assert found["fedavg"].half == pytest.approx(4.302653 * 0.2 / math.sqrt(3), rel=1e-5)
    assert found["ifca"].p_holm is not None
    assert found["ifca"].p is not None
    assert found["ifca"].p_holm >= found["ifca"].p
    assert [found[name].rank for name in ("cfl", "fedavg", "ifca")] == [1, 2.5, 2.5]
    assert found["cfl"].choice == "k=2, lr=0.1"
    assert found["cfl"].megabytes == 4
    lower = make_board({"a": rows}, "rmse")
    flipped = {one.method: one for one in standings(lower, lower.federations[0])}
    assert flipped["cfl"].gain == pytest.approx(-0.1)
    assert flipped["cfl"].rank == 3


def test_one_failed_run_fails_the_method_there() -> None:
    rows = {"fedavg": result(0.5, 0.5, 0.5), "cfl": result(0.9, "diverged", 0.9), "ifca": result(0.1, 0.1, 0.1)}
    rows["flt"] = {
        "trials": [{"options": "", "lr": 0.1, "failed": "no encoder", "cpu": 0.1}],
        "choice": None,
        "runs": [],
    }
    board = make_board({"a": rows})
    found = {one.method: one for one in standings(board, board.federations[0])}
    assert found["cfl"].failed == "seed 1: diverged"
    assert found["flt"].failed == "no encoder"
    assert (found["cfl"].mean, found["cfl"].gain) == (None, None)
    assert [found[name].rank for name in ("fedavg", "ifca", "cfl", "flt")] == [1, 2, 3.5, 3.5]


def test_an_error_far_beyond_the_references_is_a_failure() -> None:
    rows = {"fedavg": result(2.0, 2.0), "clove": result(2.1, 3e35), "ifca": result(3.0, 19.0)}
    board = make_board({"a": rows}, "rmse")
    found = {one.method: one for one in standings(board, board.federations[0])}
    assert found["clove"].failed == "seed 1: training diverged (rmse 3e+35) with the chosen lr=0.1"
    assert found["ifca"].failed is None
    assert [found[name].rank for name in ("fedavg", "ifca", "clove")] == [1, 2, 3]
