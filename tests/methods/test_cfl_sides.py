"""Who goes to which side of a split: members that move, and members that the check did not see."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from coterie.methods import cfl_check
from coterie.methods import cfl_rule as rule
from coterie.methods.cfl_sides import MOVABLE, completed, movers, sure_places
from coterie.methods.cfl_state import State, Track, split_by_check
from coterie.methods.server import Server
from coterie.methods.tree import Node, Tree
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config

EVIDENCE = rule.Evidence(
    age=20, loss=1.0, progress=0.01, fastest=0.1, p_value=0.0005, group_p_value=0.0005, gain=math.nan,
    conflict=math.nan, harm=math.nan, shared=math.nan, separation=0.8, noise=0.4,
)  # fmt: skip
FORK = rule.Fork("", (("a", "b", "x"), ("c", "d")), EVIDENCE)
MANY = dict.fromkeys("abcdexyz", MOVABLE)
LIKED = {"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [0.8, 1.2], "d": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("ways", "samples", "moves"),
    [
        ([-1.0, -1.0], MOVABLE, True),
        ([-0.5, -0.5], MOVABLE, True),  # half as much as c and d like their own
        ([-0.4, -0.5], MOVABLE, False),
        ([-3.0, 0.1], MOVABLE, False),  # one half of the data says otherwise
        ([-1.0, -1.0], MOVABLE - 1, False),
    ],
)
def test_a_member_moves_that_likes_the_other_side_as_its_own_members_do(
    ways: list[float], samples: int, moves: bool
) -> None:
    assert movers(FORK, LIKED | {"x": ways}, MANY | {"x": samples}) == ({"x"} if moves else set())


def test_nobody_moves_where_a_side_would_be_empty_or_has_not_answered() -> None:
    assert movers(FORK, LIKED | {client: [-9.0, -9.0] for client in "cd"}, MANY) == set()
    assert movers(FORK, {"x": [-1.0, -1.0]}, MANY) == set()


def test_the_preference_is_that_of_the_fork_among_those_on_the_way() -> None:
    below = rule.Fork("0", FORK.sides, EVIDENCE)
    ways = {client: [9.0, 9.0, *own] for client, own in (LIKED | {"x": [-1.0, -1.0]}).items()}
    assert movers(below, ways, MANY) == {"x"}
    assert movers(FORK, ways, MANY) == set()


def test_places_are_sure_where_both_halves_agree() -> None:
    ways = {"a": [0.1, 2.0], "b": [-0.1, -2.0], "c": [-0.1, 2.0], "d": [-1.0, -1.0]}
    assert sure_places(ways, MANY | {"d": 3}) == {"a": 0, "b": 1}


def test_members_that_were_not_seen_go_where_they_are_placed_else_to_those_like_them_else_to_the_larger_side() -> None:
    left, right = torch.tensor([1.0, 0.2, 0.0]), torch.tensor([1.0, -0.2, 0.0])
    updates = dict.fromkeys("abx", left) | dict.fromkeys("cd", right) | {"e": 2 * right, "y": right}
    sides = completed(FORK, ["a", "b", "c", "d", "e", "x", "y", "z"], updates, {"x"}, {"y": 0})
    assert sides == (["a", "b", "y", "z"], ["c", "d", "e", "x"])


def four_clients() -> Server:
    options = {"scenario": "digits-iid", "clients": 4, "samples": 20, "model": "logistic", "rounds": 6, "workers": 1}
    return assemble(make_config(options | {"method": "cfl"}))[0].server


def test_a_split_is_made_though_one_who_comes_later_copies_a_member_that_was_judged() -> None:
    server = four_clients()
    first, copied, other, last = server.clients
    model = server.initial_model()
    vectors = torch.randn(4, 2, len(model), generator=torch.Generator().manual_seed(0))
    updates = dict(zip((first, copied, other, last), (vectors[0], vectors[0], *vectors[1:3]), strict=True))
    leaf = Node(0, None, (first, copied, other, last), model, 1)
    session = cfl_check.Session(5, 5.0, 5, model, updates, dict.fromkeys(updates, (1.0,) * 3))
    fork = rule.Fork("", ((copied,), (other, last)), EVIDENCE)
    made = cfl_check._split(session, leaf, [fork], 5, server, server.schedule.at(5), "samples")
    assert made is not None
    assert [branch.members for branch in made.branches] == [(first, copied), (other, last)]


def test_the_order_in_which_one_check_cuts_leaves_no_trace_in_the_tree() -> None:
    server = four_clients()
    a, b, c, d = server.clients
    model = server.initial_model()
    vectors = torch.randn(4, 2, len(model), generator=torch.Generator().manual_seed(0))
    leaf = Node(0, None, server.clients, model, 1)
    updates = dict(zip(server.clients, vectors, strict=True))
    session = cfl_check.Session(5, 5.0, 5, model, updates, dict.fromkeys(updates, (1.0,) * 3))
    orders = [
        {"": ((a, b), (c, d)), "0": ((a,), (b,)), "1": ((c,), (d,))},
        {"": ((a, c, d), (b,)), "0": ((a, c), (d,)), "00": ((a,), (c,))},
    ]
    trees = []
    for sides in orders:
        forks = [rule.Fork(name, pair, replace(EVIDENCE, conflict=10.0 ** -len(name))) for name, pair in sides.items()]
        made = cfl_check._split(session, leaf, forks, 5, server, server.schedule.at(5), "samples")
        assert made is not None
        state = State(Tree.single(server.clients, model), {0: Track()}, {}, {})
        trees.append(split_by_check(state, leaf, made, 5, {}, cfl_check.Watch())[0].tree)
    ids = [(node.id, node.parent, node.members) for node in trees[0].nodes]
    assert ids == [(0, None, server.clients), (1, 0, (a,)), (2, 0, (b,)), (3, 0, (c,)), (4, 0, (d,))]
    for one, other in zip(trees[0].nodes, trees[1].nodes, strict=True):
        assert (one.members, one.children, one.split_round) == (other.members, other.children, other.split_round)
        assert torch.equal(one.model, other.model)
        assert (one.edge is None and other.edge is None) or torch.equal(one.edge, other.edge)  # type: ignore[arg-type]
    assert trees[0].nodes[0].evidence["conflict"] == 1.0  # the least sure
    assert trees[0].nodes[0].evidence["bipartitions"] == 3
