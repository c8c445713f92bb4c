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
from coterie.privacy import secure_sum as ss


def vectors_of(n, d, seed=0):
    return list(np.random.default_rng(seed).normal(size=(n, d)).clip(-3, 3))


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 7), st.integers(0, 3), st.integers(0, 3), st.integers(0, 1000))
def test_the_sum_of_those_that_came_through_is_exact_whoever_drops_out(n, silent, mute, seed):
    threshold = 2
    silent = min(silent, n - threshold)
    mute = min(mute, n - silent - threshold)
    vectors, quantiser = vectors_of(n, 20, seed), ss.Quantiser.for_sums(3.0, n)
    order = np.random.default_rng(seed).permutation(n).tolist()
    lost, quiet = order[:silent], order[silent : silent + mute]
    total, who, _ = ss.secure_sum(vectors, quantiser, threshold, 2, lost, quiet)
    assert sorted(who) == sorted(set(range(n)) - set(lost))
    words = sum((quantiser.encode(vectors[i]) for i in who), np.zeros(20, dtype=np.uint32))
    np.testing.assert_array_equal(total, quantiser.decode(words))
    exact = sum(vectors[i] for i in who)
    assert float(np.abs(total - exact).max()) <= quantiser.error(len(who)) * (1 + 1e-9)


def test_the_stated_error_is_reached_and_not_passed():
    quantiser = ss.Quantiser(1.0, 0.5)
    assert quantiser.error(1) == 0.25
    np.testing.assert_array_equal(quantiser.decode(quantiser.encode(np.array([0.24, -0.26, 7.0]))), [0.0, -0.5, 1.0])
    fine = ss.Quantiser.for_sums(2.0, 10)
    largest = sum((fine.encode(np.array([2.0, -2.0])) for _ in range(10)), np.zeros(2, dtype=np.uint32))
    np.testing.assert_allclose(fine.decode(largest), [20.0, -20.0], atol=fine.error(10))  # no overflow at the limit
    with pytest.raises(ConfigError, match="limit=0"):
        ss.Quantiser.for_sums(0, 3)


def protocol(n=5, d=4000, threshold=3, minimum=3, value=None):
    """All messages of a sum; every client's vector is the same, so that nothing but masks tells them apart."""
    clients = {i: ss.SecureClient(i, threshold, minimum) for i in range(1, n + 1)}
    keys = {i: client.keys() for i, client in clients.items()}
    sealed = {i: client.shares(keys) for i, client in clients.items()}
    words = np.full(d, 7, dtype=np.uint32) if value is None else value
    masked = {
        i: client.masked(words, {s: boxes[i] for s, boxes in sealed.items() if s != i}) for i, client in clients.items()
    }
    return clients, keys, sealed, masked


def test_single_messages_cannot_be_told_from_random_numbers():
    _, _, _, masked = protocol()
    assert stats.chisquare(np.bincount(masked[1].view(np.uint8), minlength=256)).pvalue > 1e-5
    for one, other in itertools.combinations(masked.values(), 2):
        assert stats.chisquare(np.bincount((one - other).view(np.uint8), minlength=256)).pvalue > 1e-5
    # The sum of all but one still has masks on it; only that of all is free of the pairs' masks.
    part = sum((masked[i] for i in (1, 2, 3, 4)), np.zeros(4000, dtype=np.uint32))
    assert stats.chisquare(np.bincount(part.view(np.uint8), minlength=256)).pvalue > 1e-5


def test_fewer_than_the_threshold_of_shares_give_nothing():
    shares = ss.split(12345, 3, range(1, 6))
    assert ss.join({i: shares[i] for i in (2, 4, 5)}) == 12345
    assert ss.join(shares) == 12345
    with pytest.raises(ss.NotOpened, match="do not belong together"):
        ss.join({i: shares[i] for i in (1, 2)})
    clients, keys, _, masked = protocol()
    revealed = {i: clients[i].reveal(masked) for i in (1, 2)}
    with pytest.raises(ss.NotOpened, match="2 clients showed"):
        ss.open_sum(masked, revealed, keys, 3)


def test_below_the_minimum_no_client_helps_to_open_anything():
    clients, _, _, masked = protocol(minimum=4)
    with pytest.raises(ss.NotOpened, match="3 vectors came through, 4"):
        clients[1].reveal([1, 2, 3])
    few = {i: ss.SecureClient(i, 2, 4) for i in (1, 2, 3)}
    with pytest.raises(ss.NotOpened, match="3 clients, at least 4"):
        few[1].shares({i: client.keys() for i, client in few.items()})
    assert set(clients[1].reveal(masked)) == {1, 2, 3, 4, 5}


def test_a_client_shows_its_shares_once_and_never_both_of_anybody():
    clients, _, _, masked = protocol()
    shown = clients[1].reveal([1, 2, 3])
    assert set(shown) == {1, 2, 3, 4, 5}
    with pytest.raises(ss.NotOpened, match="answered once"):
        clients[1].reveal(masked)
    with pytest.raises(ss.NotOpened, match="does not fit"):
        clients[2].reveal([1, 2, 3, 9])


def test_shares_that_were_changed_or_sent_on_are_found_out():
    clients = {i: ss.SecureClient(i, 2, 2) for i in (1, 2, 3)}
    keys = {i: client.keys() for i, client in clients.items()}
    sealed = {i: client.shares(keys) for i, client in clients.items()}
    words = np.zeros(4, dtype=np.uint32)
    broken = sealed[2][1][:-1] + bytes([sealed[2][1][-1] ^ 1])
    with pytest.raises(ss.NotOpened, match="changed on the way"):
        clients[1].masked(words, {2: broken, 3: sealed[3][1]})
    with pytest.raises(ss.NotOpened, match="changed on the way"):
        clients[1].masked(words, {2: sealed[2][3], 3: sealed[3][1]})
    fresh = ss.SecureClient(1, 2, 2)
    with pytest.raises(ss.NotOpened, match="not those that were sent"):
        fresh.shares(keys)


def test_exchanges_are_answered_once_and_in_order():
    """Two vectors under the same masks would tell their difference, and one without pairs the vector itself."""
    clients = {i: ss.SecureClient(i, 2, 2) for i in (1, 2, 3)}
    keys = {i: client.keys() for i, client in clients.items()}
    words = np.zeros(4, dtype=np.uint32)
    with pytest.raises(ss.NotOpened, match="exchange 2 of a sum of which 0 are done"):
        clients[1].masked(words, {})
    sealed = {i: client.shares(keys) for i, client in clients.items()}
    with pytest.raises(ss.NotOpened, match="exchange 1 of a sum of which 1 are done"):
        clients[1].shares(keys)
    with pytest.raises(ss.NotOpened, match="exchange 3 of a sum of which 1 are done"):
        clients[1].reveal([1, 2, 3])
    boxes = {2: sealed[2][1], 3: sealed[3][1]}
    clients[1].masked(words, boxes)
    again = ss.SecureClient.from_json(json.loads(json.dumps(clients[1].to_json())))
    with pytest.raises(ss.NotOpened, match="exchange 2 of a sum of which 2 are done"):
        again.masked(words, boxes)


@pytest.mark.parametrize("numbers", [(0, 1, 2), (1, 1, 2), (1, 2, ss.PRIME)])
def test_no_share_lies_where_it_is_the_secret_itself(numbers):
    with pytest.raises(ss.NotOpened, match="the secret itself"):
        ss.split(7, 2, numbers)


def test_a_false_share_spoils_the_sum_of_a_dropped_client_visibly():
    clients, keys, _, masked = protocol(threshold=2)
    del masked[5]
    revealed = {i: clients[i].reveal(masked) for i in (1, 2)}
    revealed[1][5] = (revealed[1][5] + 1) % 2**256
    with pytest.raises(ss.NotOpened, match="do not"):
        ss.open_sum(masked, revealed, keys, 2)


def test_bytes_grow_with_the_vector_and_with_the_square_of_the_clients():
    assert ss.traffic(10, 1000).up - ss.traffic(10, 0).up == 10 * 4 * 1000
    assert ss.traffic(20, 0).down > 3.5 * ss.traffic(10, 0).down
