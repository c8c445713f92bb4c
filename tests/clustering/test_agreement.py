"""Who pulls against the others: against brute force, by hand, and never where honest groups merely differ."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import cosine_matrix
from coterie.clustering.agreement import (
    AGREES,
    ALONE,
    CUT,
    ENOUGH,
    FEWEST,
    FITS,
    OUT,
    SHARE,
    TRUSTED,
    agreement,
    camps,
    copied,
    counted,
    fitted,
)

ALIKE = np.ones(20)
"""Losses of clients that the model serves alike."""


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


@pytest.mark.parametrize(("n", "likeness", "hostile"), [(20, 0.1, 3), (20, 0.8, 3), (5, 0.8, 1), (12, 0.5, 2)])
def test_a_few_that_send_the_honest_mean_turned_around_are_found(n, likeness, hostile):
    updates = learning_together(n, likeness)
    updates[:hostile] = -updates[hostile:].mean(axis=0)
    assert hostile <= max(1, n // ALONE)
    found = agreement(cosine_matrix(updates)).opposed()
    assert np.flatnonzero(found).tolist() == list(range(hostile))


def test_more_than_a_few_are_a_group_whatever_they_claim():
    """Two of five turned around may be an honest group; whether they lie is found by their losses (test_conduct)."""
    updates = learning_together(5, 0.8)
    updates[:2] *= -1
    for losses in (np.ones(5), np.array([3.0, 3.0, 1.0, 1.0, 1.0])):
        assert counted(cosine_matrix(updates), np.ones(5), losses).tolist() == [1, 1, 1, 1, 1]


@pytest.mark.parametrize(("sizes", "torn"), [((2, 2), True), ((3, 4), True), ((1, 3), False), ((4, 0), False)])
def test_two_camps_that_pull_against_each_other_are_told(sizes, torn):
    updates = learning_together(sum(sizes), 0.8)
    updates[: sizes[0]] *= -1
    found = camps(cosine_matrix(updates))
    assert (found is not None) == torn
    if torn:
        assert found.tolist() == [i < sizes[0] for i in range(sum(sizes))]


def test_clients_that_merely_differ_are_no_camps():
    """One pair that does not fit the picture is enough: all must be of one camp or the other."""
    for seed in range(20):
        assert camps(cosine_matrix(learning_together(6, 0.0, seed))) is None
    updates = learning_together(5, 0.8)
    updates[:2] *= -1
    updates[4] = np.random.default_rng(0).normal(size=2000)
    assert camps(cosine_matrix(updates)) is None
    assert camps(cosine_matrix(updates[:3])) is None
    aside = np.repeat([[1.0, 0.0], [-0.2, 1.0]], 2, axis=0)  # two groups, nearly at a right angle
    assert camps(cosine_matrix(aside)) is None


def test_clients_that_are_not_served_yet_may_pull_hard_where_they_are_many():
    updates = learning_together(20, 0.3)
    updates[:4, 0] *= -0.3
    pulls, losses = np.ones(20), np.ones(20)
    pulls[:4], losses[:4] = 6.0, 2 * FITS
    assert 20 // ALONE < 4
    assert (counted(cosine_matrix(updates), pulls, losses) == 1).all()
    assert (counted(cosine_matrix(updates), pulls, np.ones(20))[:4] < 1).all()
    few = np.r_[0, 4:20]
    one = cosine_matrix(updates[few])
    assert counted(one, pulls[few], losses[few])[0] < 1  # one may be hostile


def test_a_copy_is_told_from_an_update_that_is_alike():
    updates = learning_together(6, 0.99)
    updates[3], updates[5] = 2 * updates[1], -updates[1]
    assert np.flatnonzero(copied(cosine_matrix(updates), updates.shape[1])).tolist() == [3]
    assert not copied(cosine_matrix(updates), ENOUGH - 1).any()


def test_a_loss_fits_up_to_a_multiple_of_the_median():
    assert fitted(np.array([1.0, 2.0, 2 * FITS, 2 * FITS + 0.1, 0.1])).tolist() == [True, True, True, False, True]
    assert fitted(np.zeros(0)).tolist() == []


def test_honest_updates_are_left_alone_however_little_they_share():
    for seed in range(20):
        for likeness in (0.0, 0.05, 0.3, 0.9):
            updates = learning_together(20, likeness, seed)
            assert (counted(cosine_matrix(updates), np.linalg.norm(updates, axis=1), ALIKE) == 1).all()


@pytest.mark.parametrize("sizes", [(10, 10), (5, 5, 5, 5), (14, 6), (3, 2)])
def test_groups_in_conflict_are_no_attack(sizes):
    """At the point where a cluster of several groups rests, each group pulls against the sum of the others."""
    rng = np.random.default_rng(1)
    own = rng.normal(size=(len(sizes), 2000))
    own -= np.average(own, axis=0, weights=sizes)
    updates = np.concatenate([row + 0.3 * rng.normal(size=(n, 2000)) for row, n in zip(own, sizes, strict=True)])
    assert (counted(cosine_matrix(updates), np.ones(len(updates)), np.ones(len(updates))) == 1).all()


def test_a_hard_pull_counts_if_it_agrees_is_cut_if_it_hardly_does_and_is_left_out_against_the_others():
    updates = learning_together(20, 0.2)
    pulls = np.ones(20)
    pulls[0] = 5.0
    assert (counted(cosine_matrix(updates), pulls, ALIKE) == 1).all()
    sideways = updates.copy()
    sideways[0] = 0
    sideways[0, 1] = 1  # at a right angle: AGREES · 5 is below CUT, AGREES · 10 above
    assert counted(cosine_matrix(sideways), pulls, ALIKE)[0] == 1
    pulls[0] = 10.0
    assert CUT < AGREES * 10 < OUT
    assert counted(cosine_matrix(sideways), pulls, ALIKE)[0] == pytest.approx(0.1)
    updates[0] *= -1
    assert counted(cosine_matrix(updates), pulls, ALIKE)[0] == 0
    assert (counted(cosine_matrix(updates), pulls, ALIKE)[1:] == 1).all()


def test_a_trusted_client_is_cut_as_far_as_it_must_and_never_left_out():
    updates = learning_together(20, 0.2)
    updates[0] *= -1
    cosines, pulls = cosine_matrix(updates), np.ones(20)
    against = AGREES - agreement(cosines).cosines[0]
    trusted = np.arange(20) == 0
    for pull, expected in (
        (0.9 * TRUSTED / against, 1.0),
        (2 * TRUSTED / against, 0.5),
        (100.0, TRUSTED / against / 100),
    ):
        pulls[0] = pull
        assert counted(cosines, pulls, ALIKE, trusted)[0] == pytest.approx(expected)
        assert counted(cosines, pulls, ALIKE)[0] < expected
    steep = learning_together(20, 0.9)
    steep[0] *= -1  # so far against the others that it does not count whoever sends it
    assert counted(cosine_matrix(steep), np.ones(20), ALIKE, trusted)[0] == 0


def test_of_three_nothing_can_be_told():
    updates = learning_together(3, 0.9)
    updates[0] *= -1
    assert (counted(cosine_matrix(updates), np.ones(3), np.ones(3)) == 1).all()
    assert counted(np.zeros((0, 0)), np.zeros(0), np.zeros(0)).tolist() == []


def test_updates_of_no_length_pull_at_nothing():
    assert (counted(cosine_matrix(np.zeros((6, 4))), np.zeros(6), np.zeros(6)) == 1).all()
