"""`as=paper`: the printed algorithm by one switch, and every departure of a default is one that is listed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coterie
from coterie.errors import ConfigError
from coterie.methods import find_method, make_method, method_classes
from coterie.methods.option_types import field_types, value_in_words
from coterie.methods.published import departures_of

PAPERS = ("cfl", "ifca", "fedcuau", "flt")


@pytest.mark.parametrize("name", PAPERS)
def test_a_departure_is_an_option_whose_default_is_another(name: str) -> None:
    cls = find_method(name)
    default, paper = make_method(name), make_method(f"{name}:as=paper")
    assert departures_of(cls)
    for departure in departures_of(cls):
        assert departure.option in field_types(cls)
        assert getattr(default, departure.option) != departure.paper
        assert getattr(paper, departure.option) == departure.paper


def test_what_is_given_beside_the_switch_counts() -> None:
    method = make_method("cfl:as=paper,rule=paper(eps1=0.4,eps2=1.6),weighting=uniform")
    assert (method.rule, method.fallback, method.weighting) == ("paper(eps1=0.4,eps2=1.6)", False, "uniform")


def test_other_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="option as='printed': expected paper"):
        make_method("cfl:as=printed")


def test_the_papers_rule_may_split_in_round_one() -> None:
    options = {"scenario": "digits-permuted", "clients": 6, "groups": 2, "rounds": 1, "workers": 1}
    result = coterie.run("cfl:as=paper,rule=paper(eps1=100,eps2=0.001,gamma_max=0.1)", **options)
    assert len(result.clusters) == 2


def test_ifca_as_published_begins_with_independent_draws() -> None:
    options = {"scenario": "digits-permuted", "clients": 6, "groups": 2, "rounds": 2, "workers": 1}
    switched, spelled = coterie.run("ifca:as=paper", **options), coterie.run("ifca:init=random", **options)
    assert all(torch.equal(a, b) for a, b in zip(switched.models, spelled.models, strict=True))


def test_the_page_of_papers_lists_every_departure_as_the_code_has_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = [
        f"| `{name}` | `{one.option}` | {value_in_words(one.paper)} | {one.why} |"
        for name, cls in sorted(method_classes().items())
        for one in departures_of(cls)
    ]
    assert len(rows) >= len(PAPERS)
    assert all(row in page for row in rows)
    assert page.split("## Where we depart")[1].split("The table below")[0].count("\n| `") == len(rows)
