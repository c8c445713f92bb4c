"""Ranks, effects and regrets of a stratum, against numbers worked by hand and published ones."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from coterie_board.diagram import rank_diagram
from coterie_board.strata import cliques, critical_difference, make_ranking, rankings
from test_standings import make_board, result

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_the_critical_difference_is_that_of_the_published_table(methods: int, q: float) -> None:
    """q of Demšar 2006, Table 5a."""
    expected = q * math.sqrt(methods * (methods + 1) / (6 * 30))
    assert critical_difference(methods, 30) == pytest.approx(expected, rel=1e-3)


def test_bars_join_the_longest_runs_within_the_difference() -> None:
    assert cliques([1.0, 2.0, 2.5, 4.0, 9.0], 1.6) == [(0, 2), (2, 3)]
    assert cliques([1.0, 5.0, 9.0], 1.0) == []
    assert cliques([1.0, 1.5, 2.0], 5.0) == [(0, 2)]


def test_a_stratum_is_ranked_over_its_complete_federations_without_the_oracle() -> None:
    rows = {"fedavg": result(0.5), "cfl": result(0.75), "ifca": result(0.875), "groups": result(0.9)}
    board = make_board({"a": rows, "b": dict(rows), "c": {"fedavg": result(0.9)}})
    ranking = make_ranking(board, "labels")
    assert ranking is not None
    assert ranking.federations == ["a", "b"]
    assert ranking.methods == ["ifca", "cfl", "fedavg"]
    assert ranking.mean("ifca") == 1
    assert [one.stratum for one in rankings(board)] == ["labels"]
    assert make_ranking(board, "drift") is None


def test_effects_are_mean_log_ratios_of_errors() -> None:
    """Errors 0.5 and 0.4 of the reference, 0.25 and 0.1 of cfl: ratios 2 and 4, mean log 1.5 log 2."""
    first = {"fedavg": result(0.5), "cfl": result(0.75), "ifca": result(0.5), "groups": result(0.875)}
    second = {"fedavg": result(0.6), "cfl": result(0.9), "ifca": result("failed"), "groups": result(0.95)}
    ranking = make_ranking(make_board({"a": first, "b": second}), "labels")
    assert ranking is not None
    effect = ranking.effects["cfl"]
    assert effect.mean == pytest.approx(1.5 * math.log(2))
    assert effect.federations == 2
    # Two values of mean 1.5 log 2 and standard error 0.5 log 2; Student's quantile with one degree of freedom.
    assert effect.low == pytest.approx((1.5 - 12.7062 * 0.5) * math.log(2), rel=1e-4)
    assert ranking.effects["ifca"].federations == 1
    assert ranking.effects["ifca"].p is None
    assert ranking.regrets["cfl"] == pytest.approx(math.log(2))  # twice the error of known groups on both


def test_the_same_gain_everywhere_is_sure_after_holm() -> None:
    tables = {
        name: {"fedavg": result(0.5), "cfl": result(0.75 + 0.001 * i), "ifca": result(0.5 + 0.01 * (-1) ** i)}
        for i, name in enumerate("abcdef")
    }
    ranking = make_ranking(make_board(tables), "labels")
    assert ranking is not None
    assert ranking.effects["cfl"].sure
    assert not ranking.effects["ifca"].sure


def test_errors_are_of_the_metric() -> None:
    rows = {"fedavg": result(0.4), "cfl": result(0.2), "ifca": result(0.8)}
    ranking = make_ranking(make_board({"a": rows, "b": dict(rows)}, "rmse"), "labels")
    assert ranking is not None
    assert ranking.methods == ["cfl", "fedavg", "ifca"]
    assert ranking.effects["cfl"].mean == pytest.approx(math.log(2))


def test_the_diagram_places_names_by_rank() -> None:
    names, ranks = ["best", "good <&", "fair", "poor"], [1.0, 1.5, 3.0, 4.0]
    drawn = ElementTree.fromstring(rank_diagram(names, ranks, 1.2))
    texts = ["".join(text.itertext()) for text in drawn.iter(f"{SVG}text")]
    assert {"best 1.0", "good <& 1.5", "3.0 fair", "4.0 poor", "critical difference 1.2"} <= set(texts)
    feet = [float(line.attrib["points"].split(",")[0]) for line in drawn.iter(f"{SVG}polyline")]
    assert feet == sorted(feet)
    assert feet[1] - feet[0] == pytest.approx((feet[3] - feet[0]) / 6, abs=0.2)
    bars = [line for line in drawn.iter(f"{SVG}line") if line.attrib.get("stroke-linecap")]
    assert len(bars) == len(cliques(ranks, 1.2)) == 2
