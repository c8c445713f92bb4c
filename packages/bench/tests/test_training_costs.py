"""The costs of training options: measured for each, and the manual's table is the stored one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie_bench import training_costs

ROOT = Path(__file__).parents[3]


def test_every_option_is_measured_on_both_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_costs, "CLIENTS", 2)
    monkeypatch.setattr(training_costs, "WARM_UP", 0)
    found = training_costs.measure(repeat=1)
    assert set(found) == set(training_costs.MODELS)
    for costs in found.values():
        assert set(costs) == set(training_costs.OPTIONS)
        assert costs["sgd"]["relative"] == 1


def test_the_manuals_table_is_the_stored_one() -> None:
    stored = json.loads((ROOT / "docs/results/training-costs.json").read_text())["costs"]
    page = (ROOT / "docs/guide/training.md").read_text()
    rows = [line for line in page.split("## What they cost")[1].splitlines() if line.startswith("| `")]
    assert len(rows) == len(training_costs.OPTIONS)
    for row, name in zip(rows, training_costs.OPTIONS, strict=True):
        numbers = [float(cell) for cell in row.strip("| ").split("|")[1:]]
        assert numbers == [stored[model][name]["relative"] for model in training_costs.MODELS]
