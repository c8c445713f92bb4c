"""CLoVE: clusters from loss vectors worked by hand, matched to models, and what is sent when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import silhouette_score

import coterie
from coterie.errors import ConfigError
from coterie.methods import make_method
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config
from coterie.tasks import Evaluate
from coterie_field import CLoVE
from coterie_field.clove import best_k, finite, k_means, matched

SCENARIO: dict[str, Any] = {
    "scenario": "digits-permuted", "clients": 8, "groups": 2, "model": "mlp:hidden=16", "rounds": 6, "workers": 1,
}  # fmt: skip
LOSSES = np.array([[1.0, 1.5], [1.1, 1.6], [0.9, 3.0], [1.0, 3.1]])
"""All four clients like model 0 best, so that IFCA would see one cluster; model 1 tells two pairs apart."""


def test_clients_that_like_the_same_model_are_told_apart_by_the_other_one() -> None:
    labels = k_means(LOSSES, 2, seed=3)
    assert labels.tolist() == [0, 0, 1, 1]
    # Sums of losses: the first pair 2.1 and 3.1, the second 1.9 and 6.1. Straight 2.1 + 6.1 = 8.2, crossed 5.0.
    assert matched(LOSSES, labels) == [1, 0]


def test_with_more_models_than_clusters_the_cheapest_are_taken() -> None:
    losses = np.array([[5.0, 1.0, 9.0], [5.2, 1.1, 9.0], [4.0, 2.0, 3.0], [4.1, 2.0, 3.1]])
    labels = k_means(losses, 2, seed=0)
    # Pairs' sums: 10.2, 2.1, 18 and 8.1, 4, 6.1. Models 1 and 2: 2.1 + 6.1 = 8.2 is the least.
    assert matched(losses, labels) == [1, 2]


def test_the_number_of_clusters_is_that_of_the_authors_search() -> None:
    """Three tight groups of losses: silhouettes by hand from mean distances within and to the nearest other group."""
    centres = np.array([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0], [2.0, 3.0, 1.0]])
    losses = np.concatenate([centre + 0.01 * np.arange(4)[:, None] for centre in centres])
    assert best_k(losses, 8) == 3
    assert best_k(losses, 2) == 2
    # A pair of pairs: 4 clusters of one have no silhouette, 3 gain nothing.
    assert best_k(np.array([[0.0], [0.1], [5.0], [5.1]]), 8) == 2
    assert best_k(losses[:2], 8) == 1


def test_on_random_losses_too() -> None:
    """Beside scikit-learn's Ward linkage and silhouette: the first number that no later one beats by a tenth."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        size, groups = int(rng.integers(9, 16)), int(rng.integers(2, 5))
        centres = rng.uniform(0.2, 3, (groups, 4))
        losses = centres[rng.integers(0, groups, size)] + rng.normal(0, rng.choice([0.02, 0.3]), (size, 4))
        expected, highest = 1, -1.0
        for k in range(2, 7):
            score = silhouette_score(losses, AgglomerativeClustering(k).fit_predict(losses))
            if score > 1.1 * highest:
                expected, highest = k, score
        assert best_k(losses, 6) == expected


def test_losses_that_are_not_finite_lie_above_the_others() -> None:
    odd = np.array([[1.0, np.nan], [np.inf, 2.0]])
    assert finite(odd).tolist() == [[1.0, 3.0], [3.0, 2.0]]
    assert np.isfinite(finite(np.full((2, 2), np.nan))).all()


def test_a_round_is_fedavg_in_the_clusters_that_the_losses_give() -> None:
    server, beside = (assemble(make_config(SCENARIO))[0].server for _ in range(2))
    method = CLoVE(k=2)
    state = method.start(server)
    assert not torch.equal(*state.models)
    replies = list(beside.ask_all(beside.clients, Evaluate(state.models, "train")))
    losses = np.array([reply.values["loss"] for reply in replies])
    after, info = method.round(state, 1, server)
    assert len(info.clusters) == len(set(after.cluster_of.values())) == 2
    # No pair of clusters has a lower sum of losses with the models exchanged.
    own = [after.cluster_of[client] for client in beside.clients]
    assert sum(losses[i, j] for i, j in enumerate(own)) <= sum(losses[i, 1 - j] for i, j in enumerate(own))
    for j in range(2):
        members = [client for client in beside.clients if after.cluster_of[client] == j]
        updates = {
            r.client: r.vector for r in beside.ask(beside.training_requests(members, state.models[j].clone(), 1))
        }
        weights = [beside.weight(client, "samples") for client in members]
        mean = sum(w * updates[c].double() for w, c in zip(weights, members, strict=True)) / sum(weights)
        torch.testing.assert_close(after.models[j], (state.models[j] + mean).float(), rtol=0, atol=1e-6)


def test_once_settled_clients_stay_and_a_newcomer_takes_its_lowest_loss() -> None:
    server = assemble(make_config(SCENARIO))[0].server
    method = CLoVE(k=2)
    first, second, newcomer = server.clients[:3]
    state = replace(method.start(server), cluster_of={first: 0, second: 1})
    [reply] = server.ask_all([newcomer], Evaluate(state.models, "train"))
    assert method._kept(state, [first, newcomer], server) == {first: 0, newcomer: int(np.argmin(reply.values["loss"]))}
    assert method._kept(state, [second], server) == {second: 1}


@pytest.mark.parametrize("k", [2, "auto"])
def test_finds_the_groups_and_then_sends_each_client_its_own_model_only(k: Any) -> None:
    result = coterie.run(CLoVE(k=k, k_max=4, stable_after=2), **SCENARIO | {"rounds": 8})
    assert result.summary.ari == 1.0
    stable = [record.round for record in result.history for event in record.events if event.kind == "stable"]
    assert len(stable) == 1
    d, models = result.layout.size, 2 if k == 2 else 4
    for record in result.history:
        asked = record.round <= stable[0]
        assert record.bytes.down == 8 * 4 * d * (1 + models * asked)
        assert record.bytes.up == 8 * (4 * d + 8 + 8 * models * asked)


def test_more_clusters_than_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="k=9 with 8 clients"):
        make_method("clove:k=9").start(assemble(make_config(SCENARIO))[0].server)
