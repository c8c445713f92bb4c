"""Whether losses follow updates: by hand on two numbers, and on descents with liars and honest minorities."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coterie.clustering.conduct import (
    EVIDENCE,
    EVIDENCE_SHARE,
    FALSE,
    ROUNDS,
    Conduct,
    enough_evidence,
    false_clients,
    lagging_clients,
    reported,
    trusted_clients,
)


def test_a_loss_that_falls_by_a_fifth_along_the_update_speaks_for_the_client_by_hand():
    first = replace(reported(None, 0, 2.0), cosine=0.5)
    second = reported(first, 0, 1.6)
    assert second.balance == pytest.approx(0.2 * 0.5)
    third = reported(replace(second, cosine=-1.0), 0, 1.2)  # it fell by a quarter against the update
    assert third.balance == pytest.approx(0.1 - 0.25)
    assert third.evidence == pytest.approx(0.1 + 0.25)
    assert third.rounds == 2


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_what_cannot_be_compared_says_nothing(loss):
    first = replace(reported(None, 0, 2.0), cosine=0.5)
    assert reported(first, 1, 1.0).evidence == 0  # the loss of another model
    broken = reported(first, 0, loss)
    assert broken.evidence == 0
    assert reported(replace(broken, cosine=1.0), 0, 1.0).evidence == 0
    assert reported(reported(None, 0, 0.0), 0, 0.0).evidence == 0


def test_nobody_is_judged_on_little():
    few = Conduct(0, 1.0, balance=-1.0, evidence=1.0, rounds=ROUNDS - 1)
    faint = Conduct(0, 1.0, balance=-EVIDENCE / 2, evidence=EVIDENCE / 2, rounds=ROUNDS)
    assert few.score() is None
    assert faint.score() is None
    assert replace(few, rounds=ROUNDS).score() == -1


def test_where_all_learn_slowly_less_is_enough():
    """What was seen of the median client is the measure, up to the usual amount."""
    slow = [Conduct(0, 1.0, evidence=e, balance=e, rounds=ROUNDS) for e in (0.001, 0.002, 0.003)]
    assert enough_evidence(dict(enumerate(slow))) == EVIDENCE_SHARE * 0.002
    assert (
        enough_evidence(dict(enumerate([*slow[:1], *[Conduct(0, 1.0, evidence=9.0, rounds=ROUNDS)] * 2]))) == EVIDENCE
    )
    assert enough_evidence({"new": replace(slow[0], rounds=ROUNDS - 1)}) == enough_evidence({}) == EVIDENCE
    turned = Conduct(0, 1.0, cosine=-1.0, balance=-0.001, evidence=0.001, rounds=ROUNDS)
    assert not reported(turned, 0, 0.999).false
    assert reported(turned, 0, 0.999, EVIDENCE_SHARE * 0.002).false


def test_only_those_are_trusted_whose_losses_followed_and_fell_where_the_others_do_too():
    honest = Conduct(0, 1.0, balance=0.9, evidence=1.0, rounds=ROUNDS, first=2.0, lowest=1.0)
    found = {
        "honest": honest,
        "other": honest,
        "unsure": replace(honest, balance=-0.1),
        "liar": replace(honest, balance=-0.9, false=True),
        "mirrored": replace(honest, loss=3.0, lowest=2.0),  # its losses went with its updates, and rose
        "slower": replace(honest, lowest=2 - 0.7),
        "new": replace(honest, rounds=ROUNDS - 1),
        "elsewhere": replace(honest, cluster=1, first=2.0, lowest=1.9),  # as fast as any of its cluster
    }
    assert trusted_clients(found) == {"honest", "other", "slower", "elsewhere"}
    assert trusted_clients({"honest": honest, "a": found["liar"], "b": found["liar"]}) == set()
    assert trusted_clients({"accused": replace(honest, false=True), "other": honest}) == {"other"}
    assert trusted_clients({}) == set()


def test_who_was_false_stays_so_until_the_balance_is_good():
    known = Conduct(0, 1.0, cosine=-1.0, balance=0.0, evidence=0.1, rounds=ROUNDS)
    false = reported(known, 0, 0.5)
    assert false.false
    assert false.score() < FALSE
    better = reported(replace(false, cosine=1.0), 0, 0.3)
    assert FALSE < better.score() < 0
    assert better.false
    assert not reported(replace(better, cosine=1.0), 0, 0.1).false


def test_where_losses_do_not_follow_anybodys_updates_nobody_is_accused():
    """With steps that are too long the loss rises along every update."""
    liar = Conduct(0, 1.0, balance=-0.9, evidence=1.0, rounds=ROUNDS, false=True)
    honest = Conduct(0, 1.0, balance=0.9, evidence=1.0, rounds=ROUNDS)
    assert false_clients({"a": liar, "b": honest, "c": honest}) == {"a"}
    assert false_clients({"a": liar, "b": liar, "c": honest}) == set()
    assert false_clients({}) == set()


def descent(targets, flipped=(), steps=20, rate=0.1):
    """Clients descend on |x − target|²/2; those flipped send their updates turned around and report their losses."""
    x, conducts = np.zeros(targets.shape[1]), {}
    for _ in range(steps):
        for i, target in enumerate(targets):
            loss = 0.1 + 0.5 * float(((x - target) ** 2).sum())
            conducts[str(i)] = reported(conducts.get(str(i)), 0, loss)
        false = false_clients(conducts)
        sent = rate * (targets - x)
        sent[list(flipped)] *= -1
        step = np.mean([own for i, own in enumerate(sent) if str(i) not in false], axis=0)
        for i, own in enumerate(sent):
            cosine = float(own @ step / max(np.linalg.norm(own) * np.linalg.norm(step), 1e-12))
            conducts[str(i)] = replace(conducts[str(i)], cosine=cosine)
        x = x + step
    return false_clients(conducts), x


def test_two_of_five_that_turn_their_updates_around_are_found_and_cost_nothing():
    targets = 1 + 0.1 * np.random.default_rng(0).normal(size=(5, 30))
    found, x = descent(targets, flipped=(0, 1), steps=80)
    assert found == {"0", "1"}
    np.testing.assert_allclose(x, targets[2:].mean(0), atol=0.02)


@pytest.mark.parametrize("minority", [1, 2])
def test_an_honest_minority_that_others_outvote_is_not_accused(minority):
    """The model moves away from what they want, and their losses rise as their updates say."""
    targets = 1 + 0.1 * np.random.default_rng(1).normal(size=(5, 30))
    targets[:minority] -= 3
    assert descent(targets, steps=40)[0] == set()


def clients(learned, losses, reports=10, cluster=0):
    """Clients that lost these shares of a first loss, and report these losses now."""
    return {
        f"{cluster}-{i}": Conduct(cluster, loss, first=1.0, lowest=1.0 - share, reports=reports)
        for i, (share, loss) in enumerate(zip(learned, losses, strict=True))
    }


SERVED = ([0.8] * 9, [0.2] * 9)


def test_who_learns_little_of_what_nearly_all_learn_lags_behind():
    learned, losses = ([*own, *more] for own, more in zip(SERVED, ([0.4, 0.6], [0.7, 0.4]), strict=True))
    assert lagging_clients(clients(learned, losses)) == {"0-9"}  # 0.4 is less than 0.6 · 0.8, and 0.6 is not
    losses[9] = 0.3  # it has learned little, but there was little to learn
    assert lagging_clients(clients(learned, losses)) == set()


def test_more_than_a_sixth_are_a_group_and_nobody_lags_before_the_others_have_learned():
    two = clients([0.8] * 9 + [0.1] * 2, [0.2] * 9 + [0.9] * 2)
    assert lagging_clients(two) == set()
    assert lagging_clients(two | clients([0.8] * 9, [0.2] * 9, cluster=1)) == set()
    assert lagging_clients(clients([0.8] * 10 + [0.1] * 2, [0.2] * 10 + [0.9] * 2)) == {"0-10", "0-11"}
    assert lagging_clients(clients([0.39] * 9 + [0.0], [0.5] * 9 + [1.0])) == set()
    assert lagging_clients(clients([0.5] * 9 + [0.0], [0.5] * 9 + [1.0])) == {"0-9"}
    assert lagging_clients(clients([0.8] * 2 + [0.0], [0.2] * 2 + [1.0])) == set()  # too few to tell
    assert lagging_clients({}) == set()


def test_a_client_that_came_late_is_given_time():
    known = clients(*SERVED) | {"late": Conduct(0, 0.9, first=1.0, lowest=0.9, reports=4)}
    assert lagging_clients(known) == set()
    assert lagging_clients(known | {"late": replace(known["late"], reports=5)}) == {"late"}


def test_the_first_loss_is_that_of_the_present_cluster():
    known = reported(reported(reported(None, 0, 2.0), 0, 0.5), 0, 1.0)
    assert (known.first, known.lowest, known.reports, known.learned) == (2.0, 0.5, 3, 0.75)
    moved = reported(known, 1, 1.5)
    assert (moved.first, moved.lowest, moved.reports, moved.learned) == (1.5, 1.5, 1, 0.0)
    assert math.isnan(Conduct(0, 0.0, first=0.0, lowest=0.0).learned)
