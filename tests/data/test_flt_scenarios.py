"""FLT's scenarios: which classes each group holds, sizes by the power law, and nothing dealt twice."""

from __future__ import annotations

import pytest

from coterie.data.flt_scenarios import disjoint_sets, overlapping_sets
from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError


def test_class_sets_by_hand() -> None:
    assert disjoint_sets(10, 5) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert overlapping_sets(10, 5) == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8], [8, 9, 0]]
    emnist = disjoint_sets(47, 10)
    assert [len(classes) for classes in emnist] == [5] * 9 + [2]
    assert [c for classes in emnist for c in classes] == list(range(47))


@pytest.mark.parametrize("classes", range(1, 24))
def test_every_class_has_one_group_and_every_group_a_class(classes: int) -> None:
    for groups in range(1, classes + 1):
        sets = disjoint_sets(classes, groups)
        assert [c for members in sets for c in members] == list(range(classes))
        assert all(sets)
        assert len(sets) == groups


def test_more_groups_than_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match="groups=11"):
        find_scenario("flt-s1-digits").build(clients=22, groups=11)


@pytest.mark.parametrize(("name", "sets"), [("flt-s1-digits", disjoint_sets), ("flt-s2-digits", overlapping_sets)])
def test_clients_hold_the_classes_of_their_group_and_all_samples_are_dealt(name: str, sets: object) -> None:
    federation = find_scenario(name).build(seed=3)
    assert len(federation) == 20
    assert sum(len(c.train) for c in federation) == 1438
    assert sum(len(c.test) for c in federation) == 1797 - 1438
    for client in federation:
        allowed = set(sets(10, 5)[client.group])  # type: ignore[operator]
        assert set(client.train.y.tolist()) == allowed
        assert set(client.test.y.tolist()) <= allowed
        assert len(client.validation) == 0


def test_scenario_four_has_clients_of_all_sizes_in_groups_of_their_own_classes() -> None:
    scenario = find_scenario("flt-s4-digits")
    federation = scenario.build(seed=1)
    sizes = sorted(len(c.train) for c in federation)
    assert sizes[0] >= 10
    assert sizes[-1] > 2 * sizes[0]
    assert federation.groups is not None
    assert sorted(set(federation.groups)) == [0, 1, 2, 3, 4]
    for client in federation:
        assert client.group is not None
        assert set(client.train.y.tolist()) <= {2 * client.group, 2 * client.group + 1}
    with pytest.raises(ConfigError, match="power law"):
        scenario.build(samples=10)


def test_the_papers_settings_are_the_defaults() -> None:
    first, fourth = find_scenario("flt-s1"), find_scenario("flt-s4")
    assert (first.clients, first.groups, first.defaults.rounds) == (100, 5, 100)
    training = first.defaults.training
    assert (training.lr, training.epochs, training.batch_size) == (0.01, 1, 10)
    assert (fourth.clients, fourth.groups) == (2400, 10)
    assert find_scenario("flt-s1-cifar").defaults.training.epochs == 5
