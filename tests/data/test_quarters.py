"""The quarters of FedCUAU's federation: sizes, skew, and test data that is the source's whole test set."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.data.scenarios import find_scenario
from coterie.data.sources import load_source
from coterie.errors import ConfigError
from coterie.federation import Federation

SCENARIO = find_scenario("digits-dirichlet-quarters")


def skew(federation: Federation, quarter: int, part: str = "train") -> float:
    """Mean total difference of the quarter's clients from uniform labels."""
    clients = [client for client in federation if client.group == quarter]
    shares = [np.bincount(c.part(part).y.numpy(), minlength=10) / len(c.part(part)) for c in clients]
    return float(np.mean([np.abs(share - 0.1).sum() for share in shares]))


@pytest.mark.parametrize("seed", range(3))
def test_skew_grows_from_quarter_to_quarter_in_train_and_test(seed: int) -> None:
    federation = SCENARIO.build(clients=40, seed=seed)
    for part in ("train", "test"):
        first, *_, last = (skew(federation, q, part) for q in range(4))
        assert first < last
    assert skew(federation, 0) < min(skew(federation, q) for q in (1, 2, 3))
    assert skew(federation, 3) > max(skew(federation, q) for q in (0, 1, 2))


def test_clients_are_equal_in_size_and_hold_the_whole_source_once() -> None:
    federation = SCENARIO.build(seed=1)
    pool = load_source("digits")
    assert federation.groups == [q for q in range(4) for _ in range(5)]
    for part, labels in (("train", pool.y), ("test", pool.y_test)):
        sizes = [len(client.part(part)) for client in federation]
        assert max(sizes) - min(sizes) <= 2
        held = [client.part(part).y.numpy() for client in federation]
        if part == "train":
            held += [client.validation.y.numpy() for client in federation]
        np.testing.assert_array_equal(np.bincount(np.concatenate(held)), np.bincount(labels))


def test_samples_are_training_samples_and_validation_comes_on_top_where_there_is_room() -> None:
    federation = SCENARIO.build(clients=10, samples=50, seed=0)
    assert {len(client.train) for client in federation} == {50}
    assert {len(client.validation) for client in federation} == {5}
    room = len(load_source("digits").y) // 20
    full = SCENARIO.build(clients=20, samples=room, seed=0)
    assert {len(client.train) for client in full} == {room}
    assert {len(client.validation) for client in full} == {0}


def test_train_and_test_of_a_client_have_like_proportions() -> None:
    federation = SCENARIO.build(clients=8, seed=4)
    for client in federation:
        if client.group == 3:
            train, test = (np.bincount(s.y.numpy(), minlength=10) / len(s) for s in (client.train, client.test))
            assert np.abs(train - test).sum() < np.abs(train - 0.1).sum()


def test_other_numbers_of_groups_are_refused() -> None:
    with pytest.raises(ConfigError, match="quarters are 4 groups"):
        SCENARIO.build(clients=10, groups=2)
