"""The drop-in strategy against the simulation: quick federations, one easy one in full, and the summary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie_recipes.cfl_drop_in import agreement, as_nodes, cases, compare, partition
from coterie_recipes.cfl_grid import Case, federation_of

EASY = Case(7, "digits", "permuted", 0.1, 3, 1.0, "logistic", 8, 2, False, 0.0, 5)


def test_the_cases_are_quick_and_of_both_kinds() -> None:
    chosen = cases(40)
    assert len({case.number for case in chosen}) == 40
    assert min(case.number for case in chosen) >= 9501
    assert {case.kind for case in chosen} == {"conflict", "congruent"}
    assert {case.participation for case in chosen} == {1.0, 0.3}
    assert all(case.data == "digits" and case.clients <= 20 and case.rounds <= 60 for case in chosen)
    assert cases(3) == chosen[:3]


def test_both_split_an_easy_conflict_in_the_same_round() -> None:
    found = compare(EASY, None)
    assert found["agree"]
    assert found["local"] == found["drop_in"] == {"sizes": [4, 4], "splits": [5]}


def test_nodes_are_the_same_clients_by_other_names() -> None:
    clients = federation_of(EASY, None)
    nodes = as_nodes(clients)
    assert nodes.ids[:2] == ("1001", "1002")
    assert all(a.train is b.train and a.group == b.group for a, b in zip(clients, nodes, strict=True))


def test_agreement_is_counted_by_partition_and_misses_are_listed() -> None:
    assert partition([["a", "b"], ["c"]]) == partition([["c"], ["b", "a"]]) != partition([["a"], ["b", "c"]])

    def result(agree: bool) -> dict[str, Any]:
        return {"agree": agree, "local": {"sizes": [4, 4], "splits": [5]}, "drop_in": {"sizes": [8], "splits": []}}

    findings = agreement([(EASY, result(True)), (replace(EASY, number=8, participation=0.3), result(False))])
    shares = {row.setting: row.ours for row in findings.rows}
    assert shares["all (2 federations)"] == [0.5]
    assert shares["conflict, participation 0.3 (1 federations)"] == [0.0]
    assert not any("congruent" in setting for setting in shares)
    assert any(note.startswith("8: digits permuted") for note in findings.notes)
    assert not any(note.startswith("7: digits permuted") for note in findings.notes)
