"""Centroids of clients' inputs do not leave their machines unless somebody said by name that they may."""

from __future__ import annotations

import pytest
from flower_trials import QUICK, TRAINING, digits, grid_of

from coterie.errors import ConfigError
from coterie.flower.deploy import plan
from coterie.flower.server import run_on
from coterie.runs import make_config

FEDERATION = digits(6)
SENDS = {"flt": "flt:signature=centroids", "pca-kmeans-hc": "pca-kmeans-hc:show_centroids=true"}


@pytest.mark.parametrize(("method", "accepted"), SENDS.items(), ids=list(SENDS))
def test_a_network_is_sent_no_centroids_by_default(method: str, accepted: str) -> None:
    seen: list[str] = []

    def tamper(message):
        seen.extend(name for name in message.content.get("arrays", {}) if name == "centroids")
        return message

    given = TRAINING | QUICK | {"rounds": 1, "min_nodes": 6, "timeout": 2.0}
    with pytest.raises(ConfigError, match=accepted):
        run_on(grid_of(FEDERATION, tamper=tamper), given | {"method": method})
    assert not seen
    run_on(grid_of(FEDERATION, tamper=tamper), given | {"method": accepted})
    assert len(seen) == 6


@pytest.mark.parametrize(("method", "accepted"), SENDS.items(), ids=list(SENDS))
def test_a_deployment_is_refused_before_it_is_written(method: str, accepted: str) -> None:
    config = {"scenario": "digits-permuted", "clients": 6}
    with pytest.raises(ConfigError, match=accepted):
        plan(make_config(config | {"method": method}))
    plan(make_config(config | {"method": accepted}))
    plan(make_config(config | {"method": "flt", "secure_sums": True}))


def test_words_are_no_cover_where_each_clients_sums_are_seen() -> None:
    config = {"scenario": "digits-permuted", "clients": 6, "method": "flt:signature=words"}
    with pytest.raises(ConfigError, match="over the network in clear"):
        plan(make_config(config))
    plan(make_config(config | {"secure_sums": True}))
