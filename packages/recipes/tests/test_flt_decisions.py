"""The grid of federations for FLT's decisions, how decisions are judged, and clients of power-law sizes for CUAU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie_recipes.cuau_sizes import EVEN, SKEWED, skewed_federation
from coterie_recipes.flt_decisions import EACH, FIRST, clusters_of, judged
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
    assert clusters_of(np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], dtype=bool)) == [1, 0, 1]

    def made(right: bool) -> dict[str, object]:
        return {"right": right, "ari": float(right), "sizes": [10, 10], "text": "found so"}

    results = [
        (case_of("iid", 1), {"evidence": made(True), "jump": made(False), "auto": "one family"}),
        (case_of("overlapping", 4), {"evidence": made(True), "jump": made(False), "auto": "clusters"}),
        (case_of("overlapping", 4), {"evidence": made(False), "jump": made(True), "auto": "clusters"}),
    ]
    findings = judged(results)
    shares = {(row.setting, row.measure): row.ours for row in findings.rows}
    assert shares["one family (1 federations)", "right, default"] == [1.0]
    assert shares["groups that share classes (2 federations)", "right, default"] == [0.5]
    assert shares["one family (1 federations)", "right, former rule (gamma=clearest)"] == [0.0]
    assert "iid 1 one family; overlapping 2 clusters" in findings.notes[0]
    assert len(findings.notes) == 2
    assert findings.notes[1].startswith("miss: 7: digits overlapping, 20 clients")


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
