"""One-shot clustering: groups found by k-means on local models, FedAvg inside, and what is sent when."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import coterie
from coterie.errors import ConfigError
from coterie.methods import Local, OneShot, Server, make_method
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config

SCENARIO: dict[str, Any] = {
    "scenario": "digits-permuted", "clients": 8, "samples": 60, "groups": 2, "model": "mlp:hidden=16",
    "lr": 0.5, "steps": 5, "batch_size": "full", "rounds": 8, "workers": 1,
}  # fmt: skip


def test_finds_the_groups() -> None:
    result = coterie.run("oneshot:k=2,warmup_rounds=3", evaluate_every=8, **SCENARIO)
    assert result.summary.ari == 1.0
    events = [(record.round, event.kind) for record in result.history for event in record.events]
    assert events == [(3, "clustered")]


def own_models(server: Server) -> Tensor:
    """The models `(clients, d)` that the clients keep."""
    kept = server.engine.client_states()
    return torch.stack([kept[client]["private"] for client in server.clients])


def test_warms_up_like_local_training_then_averages_inside_clusters() -> None:
    server = assemble(make_config(SCENARIO | {"participation": 0.5}))[0].server
    everybody = assemble(make_config(SCENARIO))[0].server
    method = OneShot(k=2, warmup_rounds=2)
    state, alone = method.start(server), Local().start(everybody)
    state, _ = method.round(state, 1, server)
    alone, _ = Local().round(alone, 1, everybody)
    assert torch.equal(own_models(server), own_models(everybody))  # all clients, whatever the participation
    assert not state.clustered
    state, _ = method.round(state, 2, server)
    alone, _ = Local().round(alone, 2, everybody)
    for j, centre in enumerate(state.clusters.models):
        own = own_models(everybody)[[i for i, c in enumerate(server.clients) if state.clusters.cluster_of[c] == j]]
        torch.testing.assert_close(centre, own.mean(dim=0), rtol=0, atol=1e-6)
    before = state.clusters.models
    state, _ = method.round(state, 3, server)
    sampled = {state.clusters.cluster_of[client] for client in server.participants(3)}
    for j in range(2):
        assert torch.equal(state.clusters.models[j], before[j]) == (j not in sampled)


def test_models_are_sent_up_once_after_the_warm_up_then_both_ways_each_round() -> None:
    server = assemble(make_config(SCENARIO))[0].server
    method = OneShot(k=2, warmup_rounds=3)
    state, d = method.start(server), server.layout.size
    seen = []
    for t in range(1, 5):
        state, _ = method.round(state, t, server)
        seen.append(server.traffic.drain())
    # Clients draw the initial model from its seed; while they train alone they send their loss only.
    alone, collected, whole = (8 * 8, 8 * 8), (8 * 8, 8 * 4 * d), (8 * 4 * d, 8 * (4 * d + 8))
    both = (alone[0] + collected[0], alone[1] + collected[1])
    assert seen == [alone, alone, both, whole]


@pytest.mark.parametrize(
    ("spec", "words"),
    [("oneshot:k=9", "k=9 with 8 clients"), ("oneshot:warmup_rounds=8", "warmup_rounds=8 of 8 rounds")],
)
def test_options_that_do_not_fit(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_method(spec).start(assemble(make_config(SCENARIO))[0].server)
