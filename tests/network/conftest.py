"""A real Flower network on the loopback: one SuperLink, four SuperNodes, shared by the tests and always ended."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs coterie[flower]")

from trials import Trial

from coterie.flower.local import Network


@pytest.fixture(scope="session")
def trial(tmp_path_factory):
    """A SuperLink with four SuperNodes, each with the data of one client of the scenario."""
    root = tmp_path_factory.mktemp("trial")
    with Network(root / "flower") as network:
        made = Trial(network, root)
        made.add_nodes()
        yield made
    assert not network.processes()
