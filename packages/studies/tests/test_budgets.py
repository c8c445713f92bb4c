"""A comparison says which budgets its runs shared, and holds the one that it is asked to hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.errors import ConfigError
from coterie.runs import RunFolder
from coterie_studies.budgets import budgets_in_words
from coterie_studies.comparison import run_methods
from coterie_studies.study import comparison_words
from coterie_studies.tables import caption

OPTIONS = {"scenario": "digits-permuted", "clients": 6, "groups": 2, "rounds": 12, "workers": 1, "evaluate_every": 4}
METHODS = ["fedavg", "ifca:k=2,init=random"]


def summaries(place: Path, table: dict) -> dict:
    return {row["method"]: RunFolder(place / row["folders"]["0"]).summary() for row in table["rows"]}


def test_equal_rounds_are_not_equal_bytes(tmp_path: Path) -> None:
    table = run_methods(METHODS, out=tmp_path / "c", **OPTIONS)
    assert {name: one["equal"] for name, one in table["spent"].items()} == {
        "rounds": True,
        "bytes": False,
        "passes": False,
    }
    assert "Equal for all methods: rounds (12). Not equal: bytes (" in caption(table)
    assert comparison_words(table).startswith("2 methods were run on the same clients with the same rounds, once. ")


@pytest.mark.parametrize("budget", ["bytes", "passes"])
def test_a_run_ends_when_the_budget_of_the_first_method_is_spent(tmp_path: Path, budget: str) -> None:
    table = run_methods(METHODS, out=tmp_path / "c", equal=budget, **OPTIONS)
    found = summaries(tmp_path / "c", table)
    first, second = (found[method] for method in METHODS)
    assert first.rounds == 12
    assert second.rounds < 12
    assert second.stopped is not None
    assert table["spent"][budget]["equal"]
    assert not table["spent"]["rounds"]["equal"]
    own, others = ((one.bytes.total, one.passes) for one in (first, second))
    place = ("bytes", "passes").index(budget)
    assert own[place] <= others[place] <= own[place] * (1 + 2 / 12)  # IFCA's round is less than twice FedAvg's


def test_a_budget_can_be_given(tmp_path: Path) -> None:
    table = run_methods(METHODS, out=tmp_path / "c", equal="passes", max_passes=30, **OPTIONS)
    assert all(30 <= one.passes < 50 for one in summaries(tmp_path / "c", table).values())


def test_other_budgets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="equal='byte': did you mean 'bytes'"):
        run_methods(METHODS, out=tmp_path / "c", equal="byte", **OPTIONS)


def test_budgets_are_a_sentence() -> None:
    same, apart = {"least": 3, "most": 3, "equal": True}, {"least": 458e6, "most": 1201e6, "equal": False}
    text = budgets_in_words({"rounds": same, "bytes": apart})
    assert text == "Equal for all methods: rounds (3). Not equal: bytes (458 to 1,201 MB)."
