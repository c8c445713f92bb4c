"""The grid of federations for FLT's decisions, how decisions are judged, and clients of power-law sizes for CUAU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie_recipes.cuau_sizes import EVEN, SKEWED, skewed_federation
from coterie_recipes.flt_decisions import EACH, FIRST, decide, judged
from coterie_recipes.flt_federations import ONE_FAMILY, Case, affordable, draw, federation_of, group_numbers


def test_the_judged_part_of_the_grid_has_every_kind_source_and_size() -> None:
    cases = [draw(number) for number in range(FIRST, FIRST + 2 * EACH)]
    assert len(cases) >= 60
    assert {case.shift for case in cases} == {*ONE_FAMILY, "disjoint", "overlapping", "rotated"}
    assert {case.data for case in cases} == {"digits", "mnist", "fashion"}
    assert {case.clients for case in cases} >= {20, 30, 40, 60, 100, 150, 200}
    assert any(case.unequal for case in cases)
    assert cases == [draw(number) for number in range(FIRST, FIRST + 2 * EACH)]


def case_of(shift: str, groups: int, unequal: bool = False) -> Case:
    return Case(7, "digits", shift, 20, None, groups, unequal, "default")


@pytest.mark.parametrize(("shift", "shared"), [("disjoint", 0), ("overlapping", 1)])
def test_groups_hold_classes_of_their_own_and_overlapping_ones_share_one(shift: str, shared: int) -> None:
    federation = federation_of(case_of(shift, 4), None)
    held: list[set[int]] = [set() for _ in range(4)]
    for client in federation:
        held[client.group or 0] |= set(client.train.y.tolist())
    assert set().union(*held) == set(range(10))
    for group in range(4):
        assert len(held[group] & held[(group + 1) % 4]) == shared
        assert len(held[group] & held[(group + 2) % 4]) == 0


def test_unequal_groups_are_in_proportion() -> None:
    assert np.bincount(group_numbers(case_of("disjoint", 4, unequal=True))).tolist() == [12, 5, 2, 1]


def test_one_family_has_one_group() -> None:
    for shift in ("iid", "dirichlet 0.3"):
        assert {client.group for client in federation_of(case_of(shift, 1), None)} <= {0, None}


def test_decisions_are_counted_by_kind_and_misses_are_listed() -> None:
    def made(right: bool, ours: float) -> dict[str, object]:
        others = {name: {"accuracy": 90.0, "sizes": [20]} for name in ("fedavg", "declared")}
        return {"right": right, "flt": {"accuracy": ours, "sizes": [12, 8]}, **others}

    results = [
        (case_of("iid", 1), made(True, 91.0)),
        (case_of("overlapping", 4), made(True, 89.0)),
        (case_of("overlapping", 4), made(False, 80.0)),
    ]
    findings = judged(results)
    shares = {(row.setting, row.measure): row.ours for row in findings.rows}
    assert shares["one distribution (1 federations)", "right"] == [1.0]
    assert shares["groups that share classes (2 federations)", "right"] == [0.5]
    assert shares["groups (2 federations)", "test accuracy %, flt"] == [84.5]
    assert len(findings.notes) == 2
    assert findings.notes[1].startswith("miss: 7: digits overlapping, 20 clients")
    assert findings.notes[1].endswith("flt 80.0, fedavg 90.0, declared 90.0; clusters of [12, 8]")


def test_a_case_is_decided_by_the_accuracies_of_three_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie_recipes.flt_decisions.ROUNDS", 2)
    found = decide(case_of("disjoint", 2), "pca", None)
    best = max(found["fedavg"]["accuracy"], found["declared"]["accuracy"])
    assert found["right"] is (found["flt"]["accuracy"] >= best - 2)
    assert found["declared"]["ari"] == 1.0
    assert found["flt"]["accuracy"] == found["fedavg"]["accuracy"]  # no look within two rounds


def test_sizes_follow_a_power_law_and_labels_are_skewed_or_even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie_recipes.cuau_sizes.CLIENTS", 12)
    monkeypatch.setattr("coterie_recipes.cuau_sizes.TOTAL", 400)
    assert SKEWED < 1 < EVEN
    skewed, even = (skewed_federation("digits", s, 0, None) for s in ("labels skewed", "labels even, a fifth turned"))
    for federation in (skewed, even):
        sizes = sorted(len(client.train) for client in federation)
        assert sum(sizes) == 400
        assert sizes[-1] > 1.5 * sizes[0]
    largest = [np.bincount(c.train.y.numpy(), minlength=10).max() / len(c.train) for c in skewed]
    assert np.mean(largest) > 0.35
    assert sum(client.group == 1 for client in even) == 3


def test_samples_are_halved_until_the_largest_group_has_enough_images() -> None:
    case = Case(0, "mnist", "disjoint", 200, 200, 4, True, "default")
    assert affordable(case) == 50  # 120 clients share two classes of at least 5,400 images
    assert affordable(replace(case, clients=20)) == 200
    assert affordable(replace(case, data="fashion", samples=100)) == 100
    assert affordable(replace(case, data="digits", samples=None)) is None
