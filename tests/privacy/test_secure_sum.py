"""Secure sums: exact whatever drops out, closed below the minimum, and single messages that look random."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coterie.errors import ConfigError
from coterie.privacy import opening, shamir
from coterie.privacy import secure_sum as ss
from coterie.privacy.sum_terms import NotOpened, Terms, check_weights, least_threshold
from coterie.privacy.whole_numbers import Quantiser
from coterie.trainers.base import UNEVEN


def vectors_of(n, d, seed=0):
    return list(np.random.default_rng(seed).normal(size=(n, d)).clip(-3, 3))


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 9), st.integers(0, 3), st.integers(0, 3), st.integers(0, 1000))
def test_the_sum_of_those_that_came_through_is_exact_whoever_drops_out(n, silent, mute, seed):
    threshold = least_threshold(n)
    silent = min(silent, n - threshold)
    mute = min(mute, n - silent - threshold)
    vectors, quantiser = vectors_of(n, 20, seed), Quantiser.for_sums(3.0, n)
    order = (np.random.default_rng(seed).permutation(n) + 1).tolist()
    lost, quiet = order[:silent], order[silent : silent + mute]
    words = {i: quantiser.encode(vectors[i - 1]) for i in range(1, n + 1) if i not in lost}
    clients, terms, dealt, masked = protocol(n, minimum=2, words=words)
    revealed = revealed_by({i: clients[i] for i in masked if i not in quiet}, masked)
    total, culprits = opening.open_sum(masked, revealed, terms.keys, dealt, threshold)
    assert not culprits
    np.testing.assert_array_equal(total, sum(words.values(), np.zeros(20, dtype=np.uint32)))
    exact = sum(vectors[i - 1] for i in masked)
    assert float(np.abs(quantiser.decode(total) - exact).max()) <= len(masked) * quantiser.step / 2 * (1 + 1e-9)


def test_the_stated_error_is_reached_and_not_passed():
    quantiser = Quantiser(1.0, 0.5)
    np.testing.assert_array_equal(quantiser.decode(quantiser.encode(np.array([0.24, -0.26, 7.0]))), [0.0, -0.5, 1.0])
    fine = Quantiser.for_sums(2.0, 10)
    largest = sum((fine.encode(np.array([2.0, -2.0])) for _ in range(10)), np.zeros(2, dtype=np.uint32))
    np.testing.assert_allclose(fine.decode(largest), [20.0, -20.0], atol=10 * fine.step / 2)  # no overflow at the limit
    with pytest.raises(ConfigError, match="limit=0"):
        Quantiser.for_sums(0, 3)


def terms_of(clients, minimum=3, threshold=None, **changed):
    keys = {number: client.keys() for number, client in clients.items()}
    threshold = least_threshold(len(keys)) if threshold is None else threshold
    return Terms("sum", ("task",), keys, dict.fromkeys(keys, 1.0), threshold, minimum)._replace(**changed)


def protocol(n=5, d=4000, minimum=3, words=None):
    """A sum up to its vectors; by default every client's is the same, so that nothing but masks tells them apart."""
    clients = {i: ss.SecureClient(i) for i in range(1, n + 1)}
    terms = terms_of(clients, minimum)
    dealt = {i: client.shares(terms) for i, client in clients.items()}
    for i, client in clients.items():
        assert client.check(*for_client(dealt, i)) == set()
    confirmed = {i: client.confirmation() for i, client in clients.items()}
    words = dict.fromkeys(clients, np.full(d, 7, dtype=np.uint32)) if words is None else words
    masked = {i: clients[i].masked(own, confirmed) for i, own in words.items()}
    return clients, terms, dealt, masked


def for_client(dealt, i):
    """The boxes and commitments that client i is given."""
    others = {sender: own for sender, own in dealt.items() if sender != i}
    return {s: own.boxes[i] for s, own in others.items()}, {s: own.commitments[i] for s, own in others.items()}


def revealed_by(clients, through):
    signatures = {i: client.agree(through) for i, client in clients.items()}
    return {i: client.reveal(through, signatures) for i, client in clients.items()}


def test_single_messages_cannot_be_told_from_random_numbers():
    _, _, _, masked = protocol()
    assert stats.chisquare(np.bincount(masked[1].view(np.uint8), minlength=256)).pvalue > 1e-5
    for one, other in itertools.combinations(masked.values(), 2):
        assert stats.chisquare(np.bincount((one - other).view(np.uint8), minlength=256)).pvalue > 1e-5
    # The sum of all but one still has masks on it; only that of all is free of the pairs' masks.
    part = sum((masked[i] for i in (1, 2, 3, 4)), np.zeros(4000, dtype=np.uint32))
    assert stats.chisquare(np.bincount(part.view(np.uint8), minlength=256)).pvalue > 1e-5


def test_fewer_than_the_threshold_of_shares_give_nothing():
    shares = shamir.split(12345, 3, range(1, 6))
    assert shamir.join({i: shares[i] for i in (2, 4, 5)}) == 12345
    assert shamir.join(shares) == 12345
    with pytest.raises(NotOpened, match="do not belong together"):
        shamir.join({i: shares[i] for i in (1, 2)})
    clients, terms, dealt, masked = protocol()
    revealed = revealed_by(clients, masked)
    few = {i: revealed[i] for i in (1, 2, 3)}
    with pytest.raises(NotOpened, match="3 clients showed their shares, 4"):
        opening.open_sum(masked, few, terms.keys, dealt, 4)


def test_below_the_minimum_no_client_helps_to_open_anything():
    clients, _, _, _ = protocol(minimum=5)
    with pytest.raises(NotOpened, match="4 vectors came through, 5"):
        clients[1].agree([1, 2, 3, 4])
    few = {i: ss.SecureClient(i) for i in (1, 2, 3)}
    with pytest.raises(NotOpened, match="3 clients, at least 4"):
        few[1].shares(terms_of(few, minimum=4))


@pytest.mark.parametrize(("n", "least"), [(2, 2), (3, 3), (5, 4), (6, 5), (9, 7)])
def test_thresholds_of_two_thirds_or_less_are_refused(n, least):
    clients = {i: ss.SecureClient(i) for i in range(1, n + 1)}
    for threshold in range(1, least):
        with pytest.raises(NotOpened, match="more than two thirds"):
            clients[1].shares(terms_of(clients, 2, threshold))
        clients[1] = ss.SecureClient(1)
    assert len(clients[1].shares(terms_of(clients, 2, least)).boxes) == n - 1


@pytest.mark.parametrize(
    "weights", [[1, 1e-12, 1e-12, 1e-12], [1, 1, 0.01, 0.01], [1, 1, 1, 0], [1, 1, 1, float("inf")]]
)
def test_weights_that_would_show_fewer_vectors_than_the_minimum_are_refused(weights):
    clients = {i: ss.SecureClient(i) for i in range(1, 5)}
    with pytest.raises(NotOpened, match="weight"):
        clients[1].shares(terms_of(clients, weights=dict(enumerate(weights, 1))))
    clients[1] = ss.SecureClient(1)
    assert clients[1].shares(terms_of(clients, weights={1: 1.0, 2: 0.2, 3: 0.2, 4: 1e-3}))


def test_two_lists_of_who_came_through_cannot_open_both_secrets_of_a_client():
    clients, _, _, _ = protocol(n=6)
    everybody, fewer = [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5]
    signatures = {i: clients[i].agree(everybody) for i in (1, 2, 3)} | {i: clients[i].agree(fewer) for i in (4, 5)}
    with pytest.raises(NotOpened, match="signature of the list of through is false"):
        clients[1].reveal(everybody, signatures)
    with pytest.raises(NotOpened, match="2 clients have signed the list of through, 5"):
        clients[4].reveal(fewer, {i: signatures[i] for i in (4, 5)})
    with pytest.raises(NotOpened, match="answered once"):
        clients[2].agree(fewer)


def test_a_client_that_is_not_on_the_list_shows_nothing():
    clients, _, _, _ = protocol(n=6)
    fewer = [1, 2, 3, 4, 5]
    signatures = {i: clients[i].agree(fewer) for i in fewer}
    clients[6].agree([*fewer, 6])
    with pytest.raises(ss.NotOpened, match="does not fit what this client has seen"):
        clients[6].reveal(fewer, signatures)


def test_signatures_of_another_sum_do_not_hold():
    clients, terms, _, masked = protocol()
    for change in (
        {"name": "other"}, {"tasks": ("more",)}, {"limit": 2.0}, {"noise": (1.0, 1.0)}, {"weights": {1: 2.0}}
    ):  # fmt: skip
        assert terms._replace(**change).digest() != terms.digest()
    signatures = {i: client.agree(masked) for i, client in clients.items()}
    others, _, _, _ = protocol()
    others[1].agree(masked)
    with pytest.raises(NotOpened, match="is false"):
        others[1].reveal(masked, signatures)


def test_shares_that_were_changed_or_sent_on_are_found_out_and_no_key_is_shown_for_them():
    clients = {i: ss.SecureClient(i) for i in (1, 2, 3)}
    terms = terms_of(clients, 2)
    dealt = {i: client.shares(terms) for i, client in clients.items()}
    boxes, commitments = for_client(dealt, 1)
    for changed in (
        boxes[2][:-1] + bytes([boxes[2][-1] ^ 1]),
        bytes([boxes[2][0] ^ 1]) + boxes[2][1:],
        dealt[2].boxes[3],
    ):
        client = ss.SecureClient.from_json(json.loads(json.dumps(clients[1].to_json())))
        with pytest.raises(NotOpened, match="changed on the way"):
            client.check(boxes | {2: changed}, commitments)
        with pytest.raises(NotOpened, match="not shown"):
            client.evidence()
    with pytest.raises(NotOpened, match="not those that it sent"):
        ss.SecureClient(1).shares(terms)


def test_exchanges_are_answered_once_and_in_order():
    """Two vectors under the same masks would tell their difference, and one without pairs the vector itself."""
    clients = {i: ss.SecureClient(i) for i in (1, 2, 3)}
    words, terms = np.zeros(4, dtype=np.uint32), terms_of(clients, 2)
    with pytest.raises(NotOpened, match="'masked' of a sum after 'keys'"):
        clients[1].masked(words, {})
    dealt = {i: client.shares(terms) for i, client in clients.items()}
    with pytest.raises(NotOpened, match="'shares' of a sum after 'shares'"):
        clients[1].shares(terms)
    for i, client in clients.items():
        client.check(*for_client(dealt, i))
    confirmed = {i: client.confirmation() for i, client in clients.items()}
    with pytest.raises(NotOpened, match="'agree' of a sum after 'check'"):
        clients[1].agree([1, 2, 3])
    with pytest.raises(NotOpened, match="false"):
        clients[2].masked(words, confirmed | {3: confirmed[1]})
    clients[1].masked(words, confirmed)
    again = ss.SecureClient.from_json(json.loads(json.dumps(clients[1].to_json())))
    with pytest.raises(NotOpened, match="'masked' of a sum after 'masked'"):
        again.masked(words, confirmed)


@pytest.mark.parametrize("numbers", [(0, 1, 2), (1, 1, 2), (1, 2, shamir.PRIME)])
def test_no_share_lies_where_it_is_the_secret_itself(numbers):
    with pytest.raises(NotOpened, match="the secret itself"):
        shamir.split(7, 2, numbers)


@pytest.mark.parametrize("dropped", [(), (6,)])
def test_a_changed_bit_in_any_share_names_who_showed_it_and_the_sum_is_right(dropped):
    clients, terms, dealt, masked = protocol(n=6, d=5)
    through = [i for i in masked if i not in dropped]
    came = {i: masked[i] for i in through}
    revealed = revealed_by({i: clients[i] for i in through}, through)
    for holder, subject in itertools.product(through, masked):
        for bit in (0, 300, 520):
            changed = {i: dict(shares) for i, shares in revealed.items()}
            changed[holder][subject] ^= 1 << bit
            if dropped:  # five of the six must show a right share
                with pytest.raises(NotOpened) as problem:
                    opening.open_sum(came, changed, terms.keys, dealt, terms.threshold)
                assert set(problem.value.culprits) == {holder}
                continue
            total, culprits = opening.open_sum(came, changed, terms.keys, dealt, terms.threshold)
            assert set(culprits) == {holder}
            np.testing.assert_array_equal(total, np.full(5, 7 * 6, dtype=np.uint32))


def test_bytes_grow_with_the_square_of_the_clients():
    assert ss.traffic(20).down > 3.5 * ss.traffic(10).down


def test_a_sum_of_just_the_minimum_must_not_show_one_large_weight():
    check_weights([UNEVEN, 1.0, 1.0], 3)
    with pytest.raises(NotOpened, match="of 3 weights fewer than 3"):
        check_weights([UNEVEN + 1, 1.0, 1.0], 3)
