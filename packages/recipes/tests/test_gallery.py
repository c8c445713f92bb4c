"""The gallery of natural federations: one cell for real, and by hand what is compared and drawn."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from coterie.data.sites import SUBURBAN
from coterie_recipes.gallery import EXHIBITS, METHODS, STATIONS, Exhibit, _circle, _draw, compared, shares, shown


def test_known_groups_score_as_well_as_the_data_allow() -> None:
    exhibit = Exhibit("digits-permuted", "accuracy", ("a", "b", "c", "d"))
    known = shown(exhibit, "groups", 0, None, rounds=5)
    assert known["ari"] == 1.0
    assert len(known["clusters"]) == 4
    assert known["score"] > shown(exhibit, "fedavg", 0, None, rounds=5)["score"] + 0.3


def test_gains_are_paired_by_seed_and_a_lower_error_is_a_gain() -> None:
    air = EXHIBITS[0]
    found = {method: [{"score": 0.40}, {"score": 0.50}] for method in METHODS}
    found["cfl"] = [{"score": 0.39}, {"score": 0.48}]
    line = next(line for line in compared(air, found) if "cfl is better than fedavg" in line)
    # Gains of 0.01 and 0.02: mean 0.015, standard error 0.005, t = 3 with one degree of freedom.
    assert line == "air: cfl is better than fedavg by +0.0150 rmse (p = 0.2, 2 of 2 seeds)"


def test_shares_by_hand() -> None:
    groups = {"a": 0, "b": 0, "c": 1}
    cells = [{"groups": groups, "clusters": [["a", "b"], ["c"]]}, {"groups": groups, "clusters": [["a"], ["b", "c"]]}]
    assert shares(cells) == {("a", "b"): 0.5, ("a", "c"): 0.0, ("b", "c"): 0.5}


def test_stations_of_one_group_lie_apart_from_the_others_on_the_map() -> None:
    northern = {name for name, (_, latitude) in STATIONS.items() if latitude > 40.1}
    assert northern == SUBURBAN


def test_clients_without_a_place_stand_in_a_circle_group_by_group() -> None:
    at = _circle({"a": 1, "b": 0, "c": 1, "d": 0})
    assert list(at) == ["b", "d", "a", "c"]
    assert at["b"] == pytest.approx((1, 0))
    assert at["a"] == pytest.approx((-1, 0))


def test_the_picture_joins_those_who_share_a_model() -> None:
    names = {"air": {name: int(name in SUBURBAN) for name in STATIONS}}
    names["landmine"] = {f"field-{i}": i % 2 for i in range(4)}
    names["digits-4"] = {f"client-{i}": i for i in range(4)}
    drawn = {
        scenario: [{"groups": of, "clusters": [[c for c in of if of[c] == g] for g in set(of.values())]}]
        for scenario, of in names.items()
    }
    figure = Figure()
    _draw(figure, drawn)
    air, landmine, digits = figure.axes
    assert len(air.lines) == 8 * 7 / 2 + 4 * 3 / 2
    assert (len(landmine.lines), len(digits.lines)) == (2, 0)
