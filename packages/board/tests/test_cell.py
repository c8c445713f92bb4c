"""One run of the board: its budget, the plateau rule, and what clusters are worth by the hidden groups."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from coterie_board.cell import Cell, clients_of, compute, of_groups
from coterie_board.federations import BoardFederation
from coterie_board.tuning import Trial

TINY = {"clients": 4, "samples": 40, "groups": 2, "model": "mlp:hidden=8", "epochs": 1}
ENTRY = BoardFederation("digits-permuted", "labels", "labels permuted", 5, options=TINY)


def cell(entry: BoardFederation = ENTRY, method: str = "fedavg", options: str = "", *, tuning: bool = False) -> Cell:
    return Cell(entry, method, Trial(options), 0, tuning, None)


def test_the_budget_is_passes_per_client() -> None:
    found = compute(cell(replace(ENTRY, patience=None)))
    assert found["passes"] == 5
    assert (found["rounds"], found["stopped"]) == (5, "budget")


def test_a_run_without_progress_ends_before_its_budget() -> None:
    found = compute(cell(replace(ENTRY, passes=500, patience=2)))
    assert found["stopped"] == "plateau"
    assert found["passes"] < 500


def test_data_without_validation_data_gets_some() -> None:
    federation, _ = clients_of("flt-s1-digits", (("clients", 10),), 0, False, None)
    assert all(len(client.validation) for client in federation)
    tuning, _ = clients_of("flt-s1-digits", (("clients", 10),), 0, True, None)
    assert all((own.test.x == other.validation.x).all() for own, other in zip(tuning, federation, strict=True))


def test_known_groups_are_the_oracle() -> None:
    found = compute(cell(method="groups"))
    assert (found["ari"], found["conflict"]) == (1.0, 0.0)
    assert found["concept"] == pytest.approx(found["value"], abs=1e-4)  # every client has its group's model
    assert compute(cell())["conflict"] == 1.0


def test_fine_tuning_at_the_end_is_a_row() -> None:
    tuned, plain = compute(cell(method="fedavg-ft", options="personalise=5")), compute(cell())
    assert tuned["value"] > plain["value"]


def test_conflicts_and_concepts_by_hand() -> None:
    """Clusters {a, b, c}, {d, e} of groups {a, b}, {c, d, e}: 2 of 6 pairs of other groups share a cluster."""
    groups = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1}
    clients = [SimpleNamespace(id=name, test=[name]) for name in groups]

    class Clients(list[Any]):
        ids, groups = tuple("abcde"), (0, 0, 1, 1, 1)

    rows = [SimpleNamespace(private=False, mixture={}) for _ in groups]
    accuracy = {("a", 7): 0.9, ("b", 7): 0.8, ("c", 9): 0.7, ("d", 9): 0.6, ("e", 9): 0.5}
    result = SimpleNamespace(
        summary=SimpleNamespace(cluster_ids=[7, 9]),
        clusters=[["a", "b", "c"], ["d", "e"]],
        clients=rows,
        evaluate=lambda test, cluster, metrics: {"accuracy": accuracy[test[0], cluster]},
    )
    found = of_groups(result, Clients(clients), "accuracy")  # type: ignore[arg-type]
    assert found == {"concept": 0.7, "conflict": round(2 / 6, 5)}  # c is judged with the model of d and e
    rows[0].private = True
    assert of_groups(result, Clients(clients), "accuracy")["concept"] is None  # type: ignore[arg-type]


def test_a_failure_is_one_line() -> None:
    found = compute(cell(options="nonsense=1"))
    assert "\n" not in found["failed"]
