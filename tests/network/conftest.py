"""A real Flower network on the loopback: one SuperLink, four SuperNodes, shared by the tests and always ended."""

from __future__ import annotations

import os
import sys

import pytest

from printed import blocks, entry_points_in, install

pytest.importorskip("flwr", reason="needs coterie[flower]")

from trials import Trial

from coterie.flower.local import Network


@pytest.fixture(scope="session")
def trial(tmp_path_factory):
    """A SuperLink with four SuperNodes, each with the data of one client of the scenario."""
    root = tmp_path_factory.mktemp("trial")
    # The packages that docs/methods.md and docs/extending.md print, installed for this process and for all it starts.
    (toml,) = blocks("methods.md", "toml")
    site = str(install(root / "site", "angles", blocks("methods.md")[0], entry_points_in(toml)))
    method, rule = blocks("extending.md")[1:]
    install(root / "site", "screen", method, entry_points_in(blocks("extending.md", "toml")[1]))
    (root / "site" / "opposed.py").write_text(rule)
    sys.path.insert(0, site)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))
    with Network(root / "flower") as network:
        made = Trial(network, root)
        made.add_nodes()
        yield made
    assert not network.processes()
