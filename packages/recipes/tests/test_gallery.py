"""The gallery of natural federations: one cell for real, and by hand what is compared and drawn."""

from __future__ import annotations

from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from coterie.data.sites import SUBURBAN
from coterie_recipes.gallery import AIR, LANDMINE, METHODS, Exhibit, compared, panel_of, rows_of, shown
from coterie_recipes.gallery_picture import STATIONS, colours, draw, in_rows, shares


def test_known_groups_score_as_well_as_the_data_allow() -> None:
    exhibit = Exhibit("digits-permuted", "", "accuracy", ("a", "b", "c", "d"), "cfl")
    known = shown(exhibit, "groups", 0, None, rounds=5, explain=True)
    assert known["ari"] == 1.0
    assert len(known["clusters"]) == len(known["by_group"]) == 4
    assert "label" in " ".join(known["why"])
    assert known["score"] > shown(exhibit, "fedavg", 0, None, rounds=5)["score"] + 0.3


def test_gains_are_paired_by_seed_and_a_lower_error_is_a_gain() -> None:
    found = {method: [{"score": 0.40}, {"score": 0.50}] for method in METHODS}
    found["cfl"] = [{"score": 0.39}, {"score": 0.48}]
    line = next(line for line in compared(AIR, found) if "cfl gains" in line and "fedavg" in line)
    # Gains of 0.01 and 0.02: mean 0.015, standard error 0.005, t = 3; the quantile is 12.71.
    assert line == ("cfl gains +0.0150 rmse over fedavg (95 % interval -0.0485 to +0.0785, p = 0.2, 2 of 2 seeds)")


def test_shares_by_hand() -> None:
    clusterings = [[["a", "b"], ["c"]], [["a"], ["b", "c"]]]
    assert shares(clusterings) == {("a", "b"): 0.5, ("a", "c"): 0.0, ("b", "c"): 0.5}


def test_clients_that_mostly_share_a_model_have_the_colour_of_their_group() -> None:
    groups = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1}
    once, twice = [["a", "b"], ["c", "d"], ["e"]], [["a", "b", "e"], ["c", "d"]]
    assert colours(groups, [once, once, twice]) == {
        "a": 0,
        "b": 0,
        "c": 1,
        "d": 1,
        "e": 2,
    }  # e is mostly alone, and its group's is taken


def test_stations_of_one_group_lie_apart_from_the_others_on_the_map() -> None:
    northern = {name for name, (_, latitude) in STATIONS.items() if latitude > 40.1}
    assert northern == SUBURBAN


def test_clients_without_a_place_standin_rows_by_group() -> None:
    assert in_rows({"a": 1, "b": 0, "c": 1, "d": 0}) == {"b": (0, 0), "d": (1, 0), "a": (0, -1), "c": (1, -1)}


def test_the_picture_colours_stations_by_cluster_and_gains_by_what_is_sure() -> None:
    of = {name: int(name in SUBURBAN) for name in STATIONS}
    clusters = [[client for client in of if of[client] == group] for group in (0, 1)]
    own = [{"groups": of, "clusters": clusters, "score": score} for score in (0.40, 0.41)]
    lower = [cell | {"score": cell["score"] - 0.1} for cell in own]
    found = {method: own if method == "fedavg" else lower for method in METHODS}
    drawn = []
    for exhibit in (AIR, LANDMINE):
        figure = Figure()
        draw(figure, panel_of(exhibit, found))
        stations, gains = figure.axes
        first, second = stations.collections
        assert (len(first.get_offsets()), len(second.get_offsets())) == (8, 4)
        assert {tuple(colour) for colour in second.get_facecolors()} == {to_rgba("C1")}
        drawn.append(gains.containers[0].lines[0].get_color())
    assert drawn == ["C2", "C3"]  # the same lower score is surely better as an error, and surely worse as an AUC


def test_every_number_is_stored_by_group_too() -> None:
    cell = {"score": 0.5, "by_group": [0.25, 0.75], "clusters": [["a"], ["b"]], "ari": 1.0}
    stored = {row.measure: list(row.ours) for row in rows_of(AIR, "cfl", [cell])}
    assert stored == {"rmse": [0.5], "rmse, urban": [0.25], "rmse, suburban": [0.75], "clusters": [2], "ARI": [1.0]}
