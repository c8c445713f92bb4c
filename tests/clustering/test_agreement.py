"""Who pulls against the others: against brute force, by hand, and never where honest groups merely differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import cosine_matrix
from coterie.clustering.agreement import AGREES, CUT, FEWEST, OUT, SHARE, agreement, counted


def learning_together(n, likeness, seed=0, d=2000):
    """n updates that share a direction; the cosine of two is about `likeness`."""
    noise = np.random.default_rng(seed).normal(size=(n, d)) / np.sqrt(d)
    common = np.zeros(d)
    common[0] = np.sqrt(likeness)
    return common + np.sqrt(1 - likeness) * noise


def brute(updates):
    """Each update's cosine with the sum of the others' directions, without the quarter that agrees least with all."""
    unit = [row / np.linalg.norm(row) for row in updates]

    def with_others(i, kept):
        total = sum(unit[j] for j in kept if j != i)
        return float(unit[i] @ total / np.linalg.norm(total))

    everyone = range(len(unit))
    first = [with_others(i, everyone) for i in everyone]
    least = sorted(everyone, key=lambda i: first[i])[: max(1, len(unit) // SHARE)]
    kept = [i for i in everyone if i not in least]
    return [with_others(i, kept) for i in everyone], np.median(first) >= 0


@settings(max_examples=25, deadline=None)
@given(st.integers(FEWEST, 15), st.integers(0, 10**6))
def test_agreement_is_the_cosine_with_the_sum_of_the_others(n, seed):
    updates = np.random.default_rng(seed).normal(size=(n, 6))
    found = agreement(cosine_matrix(updates))
    cosines, together = brute(updates)
    np.testing.assert_allclose(found.cosines, cosines, atol=1e-6)
    assert found.together == together


@pytest.mark.parametrize(("n", "likeness", "hostile"), [(20, 0.1, 3), (20, 0.8, 3), (5, 0.8, 1), (8, 0.5, 2)])
def test_a_few_that_send_the_honest_mean_turned_around_are_found(n, likeness, hostile):
    updates = learning_together(n, likeness)
    updates[:hostile] = -updates[hostile:].mean(axis=0)
    assert np.flatnonzero(agreement(cosine_matrix(updates)).opposed).tolist() == list(range(hostile))


def test_honest_updates_are_left_alone_however_little_they_share():
    for seed in range(20):
        for likeness in (0.0, 0.05, 0.3, 0.9):
            updates = learning_together(20, likeness, seed)
            assert (counted(cosine_matrix(updates), np.linalg.norm(updates, axis=1)) == 1).all()


@pytest.mark.parametrize("sizes", [(10, 10), (5, 5, 5, 5), (14, 6), (3, 2)])
def test_groups_in_conflict_are_no_attack(sizes):
    """At the point where a cluster of several groups rests, each group pulls against the sum of the others."""
    rng = np.random.default_rng(1)
    own = rng.normal(size=(len(sizes), 2000))
    own -= np.average(own, axis=0, weights=sizes)
    updates = np.concatenate([row + 0.3 * rng.normal(size=(n, 2000)) for row, n in zip(own, sizes, strict=True)])
    assert (counted(cosine_matrix(updates), np.ones(len(updates))) == 1).all()


def test_a_hard_pull_counts_if_it_agrees_is_cut_if_it_hardly_does_and_is_left_out_against_the_others():
    updates = learning_together(20, 0.2)
    pulls = np.ones(20)
    pulls[0] = 5.0
    assert (counted(cosine_matrix(updates), pulls) == 1).all()
    sideways = updates.copy()
    sideways[0] = 0
    sideways[0, 1] = 1  # at a right angle: AGREES · 5 is below CUT, AGREES · 10 above
    assert counted(cosine_matrix(sideways), pulls)[0] == 1
    pulls[0] = 10.0
    assert CUT < AGREES * 10 < OUT
    assert counted(cosine_matrix(sideways), pulls)[0] == pytest.approx(0.1)
    updates[0] *= -1
    assert counted(cosine_matrix(updates), pulls)[0] == 0
    assert (counted(cosine_matrix(updates), pulls)[1:] == 1).all()


def test_of_three_nothing_can_be_told():
    updates = learning_together(3, 0.9)
    updates[0] *= -1
    assert (counted(cosine_matrix(updates), np.ones(3)) == 1).all()
    assert counted(np.zeros((0, 0)), np.zeros(0)).tolist() == []


def test_updates_of_no_length_pull_at_nothing():
    assert (counted(cosine_matrix(np.zeros((6, 4))), np.zeros(6)) == 1).all()
