"""Scenarios by the names that people type."""

from __future__ import annotations

from coterie.data.scenarios import find_scenario


def test_a_data_set_alone_names_its_federation_of_one_distribution() -> None:
    assert find_scenario("mnist") is find_scenario("mnist-iid")
    assert find_scenario("cifar10") is find_scenario("cifar-iid")
