"""FL+HC: FedAvg before the clustering, one clustering of everybody's updates, FedAvg inside clusters after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.cluster import AgglomerativeClustering

import coterie
from coterie.errors import ConfigError
from coterie.methods import FedAvg, make_method
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config
from coterie_field import FLHC

SCENARIO: dict[str, Any] = {
    "scenario": "digits-permuted", "clients": 8, "samples": 60, "groups": 2, "model": "mlp:hidden=16", "lr": 0.5,
    "steps": 5, "batch_size": "full", "rounds": 6, "workers": 1,
}  # fmt: skip


def test_finds_the_groups_in_one_round_and_says_when() -> None:
    result = coterie.run("flhc:warmup_rounds=2", evaluate_every=6, **SCENARIO)
    assert result.summary.ari == 1.0
    events = [(record.round, event.kind) for record in result.history for event in record.events]
    assert events == [(3, "clustered")]
    clustered = result.history[2]
    assert [cluster.members for cluster in clustered.clusters] == clustered.events[0].details["sizes"] == [4, 4]


@pytest.mark.parametrize(
    ("metric", "linkage"),
    [("l2", "ward"), ("l2", "single"), ("l1", "complete"), ("cosine", "average"), ("cosine", "complete")],
)
def test_the_clustering_is_that_of_the_updates_and_each_cluster_takes_its_mean(metric: Any, linkage: Any) -> None:
    """Against scikit-learn's clustering of the same updates, by number and by distance, at half participation."""
    options = SCENARIO | {"participation": 0.5}
    server, beside = (assemble(make_config(options))[0].server for _ in range(2))
    common = FedAvg().start(beside)
    for t in (1, 2):
        common, _ = FedAvg().round(common, t, beside)
    updates = torch.stack(
        [reply.vector for reply in beside.ask(beside.training_requests(beside.clients, common.model, 3))]
    )  # everybody
    weights = torch.tensor([beside.weight(client, "samples") for client in beside.clients], dtype=torch.float64)
    scipys, sklearns = {"l1": ("cityblock", "manhattan"), "l2": ("euclidean",) * 2, "cosine": ("cosine",) * 2}[metric]
    apart = float(np.median(cdist(updates, updates, scipys)))
    for given, how in (({"clusters": 3}, {"n_clusters": 3}), ({"threshold": apart}, {"distance_threshold": apart})):
        oracle = AgglomerativeClustering(**({"n_clusters": None} | how), metric=sklearns, linkage=linkage)
        expected = oracle.fit_predict(updates.numpy()).tolist()
        method = FLHC(warmup_rounds=2, metric=metric, linkage=linkage, **given)
        state = method.start(server)
        for t in (1, 2):
            state, _ = method.round(state, t, server)
            assert set(state.clusters.cluster_of.values()) == {0}
        torch.testing.assert_close(state.clusters.models[0], common.model)
        state, _ = method.round(state, 3, server)
        found = list(state.clusters.cluster_of.values())
        assert len({*zip(found, expected, strict=True)}) == len(set(found)) == len(set(expected)) > 1
        for j, model in enumerate(state.clusters.models):
            own = [i for i, label in enumerate(found) if label == j]
            mean = weights[own] @ updates[own].double() / weights[own].sum()
            torch.testing.assert_close(model, (common.model + mean).float(), rtol=0, atol=1e-6)
        before = state.clusters.models
        state, _ = method.round(state, 4, server)
        drawn = {state.clusters.cluster_of[client] for client in server.participants(4)}
        assert [torch.equal(a, b) for a, b in zip(before, state.clusters.models, strict=True)] == [
            j not in drawn for j in range(len(before))
        ]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("flhc:clusters=9", "clusters=9 with 8 clients"),
        ("flhc:warmup_rounds=6", "warmup_rounds=6 of 6 rounds"),
        ("flhc:metric=cosine", "Ward's sums of squares need metric=l2"),
    ],
)
def test_options_that_do_not_fit(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_method(spec).start(assemble(make_config(SCENARIO))[0].server)
