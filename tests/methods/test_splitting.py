"""The rules of when to split: the paper's thresholds, and the parts of held-out benefit."""

from __future__ import annotations

import math
from dataclasses import astuple
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import coterie
from coterie.benefit import Benefit, benefit
from coterie.clustering.bipartition import Bipartition
from coterie.errors import ConfigError
from coterie.methods.compared import ComparedHalves
from coterie.methods.server import Server
from coterie.methods.splitting import BenefitRule, PaperRule, Watched, make_rule
from coterie.methods.splitting.candidates import (
    Candidate,
    Looks,
    candidates,
    cuts,
    half_cosines,
    known_of,
    leaning_of,
    pooled,
    worth_trying,
)
from coterie.methods.splitting.judging import Judged
from coterie.methods.splitting.paper import Seen, branches_of
from coterie.methods.tree import Node


def test_the_papers_thresholds_with_numbers_and_auto() -> None:
    assert PaperRule(eps1=0.4, eps2=1.6).thresholds(Seen(largest=5.0)) == {"eps1": 0.4, "eps2": 1.6}
    assert PaperRule().thresholds(Seen(largest=5.0)) == {"eps1": 0.5, "eps2": 2.0}


@pytest.mark.parametrize(
    ("members", "t", "considered", "due"),
    [(4, 3, 0, True), (3, 3, 0, False), (4, 2, 0, False), (4, 9, 5, False), (4, 10, 5, True)],
)
def test_the_paper_compares_after_some_rounds_and_again_some_rounds_after_a_refusal(
    members: int, t: int, considered: int, due: bool
) -> None:
    leaf = Node(1, 0, tuple("abcd"[:members]), torch.zeros(1), born=1)
    assert PaperRule(min_size=2, wait=2, recheck=5)._is_due(Seen(considered=considered), leaf, t) == due


def test_members_without_a_vector_go_to_the_larger_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.methods.splitting.paper._mean_step", lambda *of: torch.zeros(3))
    seen: Any = SimpleNamespace(leaf=Node(0, None, tuple("abcd"), torch.zeros(3), born=0))
    sides, server = Bipartition(np.array([0, 2]), np.array([1]), 0.0), cast(Server, None)
    found = branches_of(seen, tuple("abc"), torch.eye(3), sides, 1, server)
    assert [branch.members for branch in found] == [("a", "c", "d"), ("b",)]


@pytest.mark.parametrize(
    ("looks", "ends"),
    [
        ({4: 0.3, 8: 0.2, 16: 0.2}, "stands"),  # at ages that double, until the gain has not shrunk
        ({4: 0.3, 8: 0.2, 16: -0.1}, "undone"),
        ({4: 0.3, 8: 0.2, 16: 0.1, 25: 0.05}, "stands"),  # the last round
    ],
)
def test_a_split_is_looked_after_at_ages_that_double(
    looks: dict[int, float], ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    born, asked = 10, []
    monkeypatch.setattr(BenefitRule, "_trained_on", lambda *of: torch.ones(1))
    monkeypatch.setattr(BenefitRule, "chosen_again", lambda *of: {})

    def gains(*of: object) -> Benefit:
        asked.append(t - born)
        return Benefit(looks[t - born], 0.1, 0.5, 8)

    monkeypatch.setattr("coterie.methods.splitting.benefit.served", gains)
    parent = Node(0, None, ("a", "b"), torch.zeros(1), born=3, split_round=born)
    server: Any = SimpleNamespace(rounds=born + 25)
    watched = Watched(Looks())
    for t in range(born + 1, born + 26):
        watched = BenefitRule().watch(watched.memory, parent, (), t, server)
        if watched.memory is None or watched.joint is not None:
            break
    assert asked == list(looks)
    assert (watched.memory is None, watched.joint is not None) == (ends == "stands", ends == "undone")


def test_a_rule_is_written_as_its_name_with_options() -> None:
    assert make_rule("paper(eps1=0.4, gamma_max=auto)") == PaperRule(eps1=0.4)
    assert make_rule("benefit(level=0.01)").level == 0.01
    for wrong in ("paper(", "paper()x", "3"):
        with pytest.raises(ConfigError, match="rule="):
            make_rule(wrong)
    with pytest.raises(ConfigError, match="SplitRule"):
        make_rule(7)


def halves_of_groups(sizes: tuple[int, ...], noise: float, seed: int, d: int = 40) -> ComparedHalves:
    """Half-updates of clients of several groups: a direction of the group's own, and noise of each half."""
    random = np.random.default_rng(seed)
    centres = np.linalg.qr(random.standard_normal((d, len(sizes))))[0].T
    group = np.repeat(np.arange(len(sizes)), sizes)
    vectors = torch.tensor(centres[group] + noise * random.standard_normal((2, len(group), d)) / math.sqrt(d))
    return ComparedHalves(tuple(f"c{i}" for i in range(len(group))), vectors, None)


def seen_in(memory: Looks, halves: ComparedHalves) -> Looks:
    return pooled(memory, halves.clients, half_cosines(halves))


def candidates_of(halves: ComparedHalves) -> list[Candidate]:
    return candidates(seen_in(Looks(), halves), half_cosines(halves))


@pytest.mark.parametrize("sizes", [(4, 4), (7, 3), (5, 1)])
def test_two_groups_are_among_the_candidates_and_are_tried(sizes: tuple[int, int]) -> None:
    halves = halves_of_groups(sizes, 0.5, 0)
    truth = np.arange(sum(sizes)) >= sizes[0]
    found = candidates_of(halves)
    right = [one for one in found if all((side == truth).all() for side in (*one.by_half, one.both))]
    assert len(right) == 1  # all three ways find it, and it is tried once
    assert worth_trying(found) == right


@pytest.mark.parametrize("sizes", [(3, 3, 3), (5, 2, 2, 3)])
def test_three_and_four_groups_are_among_the_candidates_and_are_tried(sizes: tuple[int, ...]) -> None:
    halves = halves_of_groups(sizes, 0.5, 0)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    found = candidates_of(halves)
    right = [one for one in found if all((side == truth).all() for side in (*one.by_half, one.both))]
    assert len(right) == 1
    assert worth_trying(found) == right


def test_whether_two_parts_reproduce_by_hand() -> None:
    """Each update less the mean of all, along the difference of the two parts' means on the other half."""
    halves = halves_of_groups((4, 3), 1.0, 5)
    sides = np.array([0, 0, 0, 0, 1, 1, 1])
    unit = torch.nn.functional.normalize(halves.vectors, dim=2).numpy()
    leanings = []
    for made_of, other in ((unit[0], unit[1]), (unit[1], unit[0])):
        apart = made_of[:4].mean(0) - made_of[4:].mean(0)
        leaning = (other - other.mean(0)) @ apart
        leanings.append(np.where(sides == 0, leaning, -leaning))
    by_hand = benefit(np.mean(leanings, axis=0))
    found = leaning_of(Candidate((sides, sides), sides), half_cosines(halves))
    assert astuple(found) == pytest.approx(astuple(by_hand), rel=1e-5)


def test_without_groups_hardly_anything_reproduces() -> None:
    kept = 0
    for seed in range(200):
        halves = halves_of_groups((12,), 2.0, seed)
        kept += len(worth_trying(candidates_of(halves)))
    assert kept <= 0.25 * 200  # five candidates at a level of 0.05 each


def test_cosines_of_several_looks_are_averaged_pair_by_pair() -> None:
    first, second = halves_of_groups((3, 3), 1.0, 0), halves_of_groups((3, 3), 1.0, 1)
    early = ComparedHalves(first.clients[:4], first.vectors[:, :4], None)
    memory = seen_in(seen_in(Looks(), early), second)
    assert memory.pairs is not None
    assert memory.cosines is not None
    assert memory.pairs[0, 1] == 2
    assert memory.pairs[0, 5] == 1
    unit = [torch.nn.functional.normalize(h.vectors, dim=2) for h in (first, second)]
    by_hand = sum(float(u[1, 0] @ u[1, 2]) for u in unit)
    assert memory.cosines[1, 0, 2] == pytest.approx(by_hand, abs=1e-6)
    child = known_of(memory, ["c5", "c1"])
    assert child.clients == ("c1", "c5")
    assert child.cosines is not None
    assert child.cosines[0, 0, 1] == memory.cosines[0, 1, 5]


@pytest.mark.parametrize("seed", range(20))
def test_the_last_of_the_ways_to_cut_is_the_papers_optimum(seed: int) -> None:
    """Brute force over all bipartitions: none has a smaller largest similarity across."""
    vectors = np.random.default_rng(seed).standard_normal((6, 4))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = unit @ unit.T
    cross = {
        sides: similarity[np.ix_(~np.array(sides), np.array(sides))].max()
        for sides in product([False, True], repeat=6)
        if not sides[0] and any(sides)
    }
    *_, closest = cuts(similarity)
    assert cross[tuple(closest.tolist())] == pytest.approx(min(cross.values()))


def test_two_clients_can_be_cut_in_one_way() -> None:
    assert [side.tolist() for side in cuts(np.eye(2))] == [[0, 1]]
    only = Candidate((np.array([0, 1]),) * 2, np.array([0, 1]))
    assert worth_trying([only]) == [only]


def test_updates_that_cancel_split_where_the_mean_norm_has_not_fallen_to_a_tenth() -> None:
    assert PaperRule(eps1="cancelled").thresholds(Seen(largest=5.0, longest=2.0)) == {"eps1": 0.2, "eps2": 0.8}
    result = coterie.run("cfl:as=paper,rule=paper(eps1=cancelled)", scenario="digits-permuted", rounds=55, workers=1)
    norms = [record.clusters[0].mean_norm or 0.0 for record in result.history if len(record.clusters) == 1]
    assert min(norms) > 0.1 * max(norms)
    assert len(result.clusters) == 2
    assert (result.summary.ari or 0) > 0.2  # no group is in two clusters


def judged_by_hand(*gains: float) -> Judged:
    """Eight clients and candidates of two, two, ... and four parts that gain so much over one model, give or take."""
    parts = [np.arange(8) % (4 if c == len(gains) - 1 else 2) for c in range(len(gains))]
    noise = 0.01 * np.random.default_rng(0).standard_normal((8, 1 + len(gains)))
    losses = 1.0 - np.array([0.0, *gains]) + noise
    found = [Candidate((one, one), one) for one in parts]
    return Judged(found, losses, np.zeros((8, len(gains))), np.arange(8))


@pytest.mark.parametrize(
    ("gains", "taken"),
    [
        ((0.2, 0.4, 0.4), 1),  # of two parts the one that gains most; four do not add to it
        ((0.2, 0.4, 0.6), 2),  # four parts are surely better than two
        ((0.0, 0.0, 0.3), 2),  # two parts gain nothing
        ((0.0, 0.0, 0.0), None),
        ((-0.2, -0.1, -0.3), None),
    ],
)
def test_more_parts_are_taken_where_they_surely_help_more(gains: tuple[float, ...], taken: int | None) -> None:
    found = judged_by_hand(*gains)
    candidate, gain = found.best(0.01)
    results = [found.gain(c) for c in range(3)]
    if taken is None:
        assert candidate is None
        assert gain == max(results, key=lambda one: one.gain)
    else:
        assert candidate is found.found[taken]
        assert gain == results[taken]


def test_of_few_clients_the_errors_of_two_candidates_add_up() -> None:
    found, within = judged_by_hand(0.2, 0.4), np.array([[0.01, 0.02], [0.04, 0.01], [0.02, 0.02], [0.01, 0.03]])
    found = found._replace(losses=found.losses[:4], within=within, rows=np.arange(4))
    gained = found.losses[:, 1] - found.losses[:, 2]
    assert found.gain(1, over=0) == benefit(gained, within.sum(1))
    assert found.gain(1, over=0).error > benefit(gained, within[:, 1]).error


def test_a_split_that_harms_one_part_is_not_taken() -> None:
    found = judged_by_hand(0.4, 0.4)
    found.losses[::2, 1:] = 1.3
    found.losses[1::2, 1:] = 0.1
    assert benefit(found.losses[:, 0] - found.losses[:, 1]).gain > 0
    assert found.best(0.5)[0] is None


def test_a_candidate_that_helps_all_but_one_part_has_a_part_too_many() -> None:
    found = judged_by_hand(0.4)
    one = (np.arange(8) == 7).astype(np.int64)
    found = found._replace(found=[Candidate((one, one), one)])
    assert not found.has_a_part_too_many(0.01)
    found.losses[7, 1] = 9.0  # one of eight, which the test leaves out
    assert found.best(0.01)[0] is None
    assert found.has_a_part_too_many(0.01)
    found.losses[:, 1] = found.losses[:, 0] + 0.1
    assert not found.has_a_part_too_many(0.01)
