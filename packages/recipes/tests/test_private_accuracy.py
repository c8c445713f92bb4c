"""The recipe of accuracy against ε: what it runs stays within its ε, and the figure shows every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from coterie_recipes import private_accuracy
from coterie_recipes.base import Study


@pytest.mark.parametrize(
    "subject", private_accuracy.SUBJECTS + private_accuracy.WITH_ALL, ids=lambda subject: str(subject.name)
)
def test_a_run_reaches_its_epsilon_and_no_more(subject: private_accuracy.Subject) -> None:
    digits = subject._replace(scenario=subject.scenario.replace("mnist", "digits"))
    found = private_accuracy.private_run(digits, 8.0, clients=10, rounds=2, seed=0)
    assert 7.9 < found["epsilon"] <= 8.0
    assert private_accuracy.private_run(digits, None, clients=10, rounds=1, seed=0)["epsilon"] is None


def test_table_and_figure_show_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cells(self: Study, jobs: dict[str, Any]) -> dict[str, Any]:
        return {name: {"accuracy": 0.5 + 0.01 * i} for i, name in enumerate(jobs)}

    monkeypatch.setattr(Study, "cells", cells)
    found = private_accuracy.private_accuracy(Study(tmp_path))
    assert [row.ours[0] for row in found.rows] == pytest.approx([50 + i for i in range(36)])
    assert found.rows[0].setting == "fedavg, no noise"
    assert found.rows[-1].setting == "ifca:k=2, secure sums, ε = 2"
    full = private_accuracy.private_accuracy(Study(tmp_path, scale="full"))
    assert (len(full.rows), full.rows[-1].setting) == (12, "ifca:k=2, ε = 2")
    figure = Figure()
    found.figures["private-accuracy"](figure)
    [axes] = figure.axes
    assert sorted(len(line.get_xdata()) for line in axes.lines) == [2, 2, 5, 5]
