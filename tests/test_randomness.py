"""Draws are functions of (seed, path), and different paths never meet."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import did_you_mean
from coterie.randomness import derive, numpy_generator, torch_generator

PATHS = st.lists(st.one_of(st.integers(), st.text(alphabet="ab/:str", max_size=8)), max_size=3).map(tuple)


@given(st.integers(0, 2**40), PATHS, PATHS)
def test_paths_give_the_same_seed_exactly_when_they_are_equal(seed, a, b):
    assert (derive(seed, *a) == derive(seed, *b)) == ([*map(repr, a)] == [*map(repr, b)])
    assert 0 <= derive(seed, *a) < 2**63


def test_a_slash_in_a_client_id_does_not_make_it_two_parts():
    assert derive(0, "a", "b") != derive(0, "a/str:b")
    assert derive(0, "a/", "b") != derive(0, "a", "/b")


def test_number_and_text_differ_and_seeds_differ():
    assert derive(0, 1) != derive(0, "1")
    assert derive(0, "x") != derive(1, "x")


def test_generators_repeat_and_leave_the_global_state_alone():
    before = torch.get_rng_state()
    a = torch.rand(3, generator=torch_generator(5, "x"))
    assert torch.equal(a, torch.rand(3, generator=torch_generator(5, "x")))
    assert (numpy_generator(5, "x").random(3) == numpy_generator(5, "x").random(3)).all()
    assert torch.equal(before, torch.get_rng_state())


def test_suggestion_names_the_closest_word_or_all_of_them():
    assert did_you_mean("metod", ["method", "model"]) == "did you mean 'method'?"
    assert did_you_mean("qqq", ["b", "a"]) == "known: a, b"
