"""The figures on CFL with very many clients: made as stored, and what docs/results.md says of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from coterie_bench import cfl_many

STORED = Path(__file__).parents[3] / "docs" / "results" / "cfl-many.json"


def test_both_decisions_are_compared_and_checks_are_timed() -> None:
    found = cfl_many.compare(24, 2, 0)
    assert found["same"]
    assert found["clusters"] == 2
    cost = cfl_many.measure(24, 2)
    assert cost["misplaced"] == 0
    assert {"check_seconds", "round_seconds"} <= cost.keys()


def test_misplaced_clients_are_counted() -> None:
    found = SimpleNamespace(clusters=[["0-0", "0-2", "1-1"], ["1-3", "1-5"]])
    assert cfl_many.misplaced(found, 2) == 1  # type: ignore[arg-type]


def test_the_stored_figures_are_of_the_federations_that_are_drawn_here() -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    assert {tuple(row[key] for key in ("clients", "groups", "seed")) for row in stored["moderate"]} <= set(
        cfl_many.MODERATE
    )
    assert {row["clients"] for row in stored["many"]} >= {10_000}
