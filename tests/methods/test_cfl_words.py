"""A CFL run without a split says why: what makes one impossible before the run, and the reason after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import coterie
from coterie.methods import CFL
from coterie.methods.cfl_state import Accepted, checked_event
from coterie.methods.cfl_words import first_split
from coterie.methods.tree import Branch, Node
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config

SMALL: dict[str, Any] = {
    "scenario": "digits-iid", "clients": 4, "samples": 20, "model": "logistic", "rounds": 3, "epochs": 1, "workers": 1,
}  # fmt: skip


def prepared(method: str, **options: Any) -> Any:
    return assemble(make_config(SMALL | {"method": method} | options))[0]


@pytest.mark.parametrize(
    ("method", "options", "first"),
    [
        ("cfl", {}, 5),
        ("cfl:min_rounds=9", {}, 9),
        ("cfl", {"participation": 0.5}, 6),
        ("cfl:when=gain", {}, 11),
        ("cfl:eps1=auto", {}, 20),
        ("cfl:projection=8,min_rounds=2", {}, 5),
    ],
)
def test_the_first_split_and_the_rounds_below_it(method: str, options: dict[str, Any], first: int) -> None:
    run = prepared(method, **options, rounds=first - 1)
    assert first_split(run.method, run.server) == first
    (text,) = run.foreseen()
    assert f"cannot split within {first - 1} rounds" in text
    assert f"give at least {2 * first} rounds" in text
    assert prepared(method, **options, rounds=first).foreseen() == []


def test_a_split_really_comes_no_earlier_and_can_come_then() -> None:
    result = coterie.run("cfl", scenario="digits-permuted", clients=6, groups=2, rounds=6, workers=1)
    assert [record.round for record in result.history if record.splits] == [5]
    assert result.summary.warnings == []
    assert [event.kind for record in result.history for event in record.events] == ["split"]


def test_too_few_clients_are_foreseen() -> None:
    (text,) = prepared("cfl:min_size=3", rounds=30).foreseen()
    assert text.startswith("CFL cannot split 4 clients: it needs 6 or more")
    assert prepared("cfl:min_size=2", rounds=30).foreseen() == []
    assert prepared("fedavg").foreseen() == []


@pytest.mark.parametrize(
    ("method", "options", "kind", "words"),
    [
        ("cfl", {}, "undecided", "no split: CFL cannot split within 3 rounds"),
        ("cfl", {"rounds": 6}, "undecided", "4 clients are too few for a sure answer (p = "),
        ("cfl:eps1=1e-9", {"rounds": 21}, "undecided", "never fell below eps1"),
        ("cfl:when=gain,min_gain_z=1e9", {"rounds": 12}, "whole", "when the updates were last compared"),
        ("cfl", {"rounds": 7, "clients": 10, "participation": 0.3}, "undecided", "cannot split within 7 rounds"),
        ("cfl", {"rounds": 9, "clients": 10, "participation": 0.3}, "undecided", "a check was under way"),
    ],
)
def test_the_reason_is_told_after_the_last_round(method: str, options: dict[str, Any], kind: str, words: str) -> None:
    result = coterie.run(method, **(SMALL | options))
    assert len(result.clusters) == 1
    event = result.history[-1].events[-1]
    assert event.kind == kind
    assert words in event.text
    assert result.summary.warnings == ([event.text] if kind == "undecided" else [])
    assert not any(e.kind in ("whole", "undecided") for record in result.history[:-1] for e in record.events)


def test_congruent_clients_are_told_with_their_p_value() -> None:
    result = coterie.run("cfl", **(SMALL | {"clients": 12, "rounds": 20, "lr": 0.5, "samples": 30}))
    event = result.history[-1].events[-1]
    assert event.kind in ("whole", "undecided")
    assert 0.001 < event.details["p_value"] <= 1
    assert "look alike to the test (p = " in event.text
    assert "still falls" in event.text or "try when=gain" in event.text


def test_the_method_is_what_a_word_is_asked_of() -> None:
    run = prepared("cfl", rounds=2)
    assert isinstance(run.method, CFL)
    assert run.method.foresee(run.server) == run.foreseen() != []


def test_a_split_is_told_with_its_sizes_and_its_least_sure_bipartition() -> None:
    branches = [Branch(tuple(own), torch.zeros(2), torch.zeros(len(own), 1)) for own in ("ab", "c", "de")]
    leaf = Node(0, None, tuple("abcde"), torch.zeros(2), 1)

    def told(sides: int, conflict: float) -> str:
        numbers = {"conflict": conflict, "bipartitions": sides - 1.0}
        return checked_event(leaf, Accepted(tuple(branches[:sides]), torch.zeros(2), numbers)).text

    two = told(2, 3e-7)
    assert two == "cluster 0 splits into 2 and 1: each side's step harms the other on labels both hold (p = 3e-07)"
    assert told(2, 1e-190) == two.replace("p = 3e-07", "p < 1e-20")
    three = two.replace("2 and 1:", "2, 1 and 2:").replace("= 3e-07", "≤ 3e-07 in all 2 bipartitions")
    assert told(3, 3e-7) == three
