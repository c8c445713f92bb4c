"""Auto: what is found before training, how clients are served in the end, and what of it is recorded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import coterie
from coterie.data.scenarios import find_scenario
from coterie.methods import served
from coterie.methods.served import judged
from coterie.trainers.base import Training
from coterie_inference.predicting import module_for, outputs_of

PLAN = {"model": "mlp:hidden=32", "rounds": 12, "lr": 0.1, "epochs": 2, "batch_size": 32, "workers": 1}


def test_clusters_that_are_sure_before_training_are_where_it_begins() -> None:
    data = find_scenario("digits-permuted").build(clients=8, samples=60, groups=2, seed=5)
    result = coterie.run("auto", data, **PLAN)  # type: ignore[arg-type]
    assert result.summary.ari == 1
    [first] = [event for event in result.history[0].events if event.kind == "found"]
    assert "2 models, one per cluster" in first.text
    assert first.details["p_value"] < 0.01
    assert result.history[0].splits[0].cluster == 0


def test_one_distribution_is_one_model_and_as_good_as_fedavg() -> None:
    data = find_scenario("digits-iid").build(clients=8, samples=60, seed=5)
    result = coterie.run("auto", data, **PLAN)  # type: ignore[arg-type]
    assert len(result.clusters) == 1
    assert "nothing is surely better than one model" in result.history[0].events[0].text
    common = coterie.run("fedavg", data, **PLAN)  # type: ignore[arg-type]
    assert result.summary.accuracy.mean >= common.summary.accuracy.mean - 0.02  # type: ignore[operator]


def test_without_validation_data_clients_are_served_by_their_clusters_models() -> None:
    random = torch.Generator().manual_seed(0)
    clients = [(torch.randn(20, 4, generator=random), torch.randint(0, 2, (20,), generator=random)) for _ in range(6)]
    federation = coterie.Federation.from_tensors(clients, splits=(0.8, 0, 0.2))
    assert not any(len(client.validation) for client in federation)
    result = coterie.run("auto", federation, model="mlp:hidden=8", rounds=3, workers=1)
    assert len(result.clusters) == 1
    assert not [event for record in result.history for event in record.events if event.kind == "served"]


def test_training_alone_is_doubled_while_that_helps_up_to_the_length_of_the_run(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    asked = []

    def tried(models, training, t, server):  # type: ignore[no-untyped-def]
        """Client b gains once, client a always."""
        asked.append((sorted(models), training.epochs, t))
        clients = sorted(models)
        gains = np.array([[0.25 if client == "a" or len(asked) == 1 else -0.25] for client in clients])
        return judged(
            clients, np.hstack([np.ones_like(gains), 1 - gains]), np.full((len(clients), 2), 1e-6), [9] * len(clients)
        )

    monkeypatch.setattr(served, "try_to_serve", tried)
    server = SimpleNamespace(rounds=11, layout=SimpleNamespace(size=1))
    found = served._trained_on(["a", "b"], False, Training(lr=0.1, epochs=2), 11, server)  # type: ignore[arg-type]
    assert {client: (own.times, round(own.gain, 3)) for client, own in found.items()} == {
        "a": (3, 0.75),
        "b": (1, 0.25),
    }
    assert asked == [(["a", "b"], 2, 12), (["a", "b"], 4, 13), (["a"], 8, 14)]


@pytest.fixture(scope="module")
def skewed(tmp_path_factory: pytest.TempPathFactory) -> tuple[coterie.Federation, coterie.Result, coterie.Result]:
    data = find_scenario("digits:none+classes(2)").build(clients=8, seed=1)
    out: Path = tmp_path_factory.mktemp("auto") / "run"
    result = coterie.run("auto", data, out=out, **PLAN)  # type: ignore[arg-type]
    return data, result, coterie.load(out)


def test_label_skew_is_served_by_versions_of_the_clients_own(skewed) -> None:  # type: ignore[no-untyped-def]
    data, result, _ = skewed
    common = coterie.run("fedavg", data, **PLAN)
    assert result.summary.accuracy.mean > common.summary.accuracy.mean + 0.1
    served = [event for event in result.history[-1].events if event.kind == "fallback"]
    named = [client for event in served for client in event.details["clients"]]
    assert sorted(named) == sorted(row.client for row in result.clients if row.private)
    for event in served:
        gains = event.details.get("gains", {"all": event.details}).values()
        before = "sure before training" in event.text
        assert all(found["gain"] > 0 if before else found["p_value"] <= 0.05 / 4 for found in gains)


def test_a_client_is_predicted_for_by_what_serves_it_also_from_the_folder(skewed, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    data, result, loaded = skewed
    sizes = Counter(row.cluster for row in result.clients)
    row = next(row for row in result.clients if row.private and sizes[row.cluster] > 1)
    for one in (result, loaded):
        assert one.evaluate(data[row.client].test, client=row.client)["accuracy"] == pytest.approx(row.accuracy)
    own = outputs_of(module_for(loaded, client=row.client), data[row.client].test.x)
    shared = outputs_of(module_for(loaded, cluster=row.cluster), data[row.client].test.x)
    assert not torch.equal(own, shared)
    assert loaded.export(tmp_path / "own.pt", client=row.client).exists()


def test_a_finished_run_that_is_resumed_stays_as_it_is(skewed) -> None:  # type: ignore[no-untyped-def]
    _, result, loaded = skewed
    again = coterie.resume(result.path, federation=skewed[0])
    assert [row.metrics for row in again.clients] == [row.metrics for row in loaded.clients]
    assert again.history[-1].events == loaded.history[-1].events


LOSSES = np.array([[1.0, 0.8, 1.2]] * 8) + np.linspace(0, 0.01, 8)[:, None] * np.array([0, 1, -1])


def test_a_way_is_taken_where_it_surely_helps_all() -> None:
    found = judged([f"c{i}" for i in range(8)], LOSSES, np.full((8, 3), 0.01), [10] * 8)
    assert found.chosen() == {f"c{i}": 0 for i in range(8)}
    assert found.together[1].p_value > 0.5


def test_one_client_is_moved_by_its_own_samples_alone() -> None:
    losses = np.ones((8, 2)) + np.linspace(-0.01, 0.01, 8)[:, None] * np.array([0, 1])
    losses[3] = [3.0, 0.5]
    found = judged([f"c{i}" for i in range(8)], losses, np.full((8, 2), 0.01), [20] * 8)
    assert found.chosen() == {found.clients[3]: 0}
    assert not judged(["a"], losses[3:4], np.full((1, 2), np.nan), [1]).chosen()


def test_what_was_sure_before_training_stays_unless_it_gains_nothing() -> None:
    clients, losses = [f"c{i}" for i in range(8)], LOSSES.copy()
    losses[:, 1:] = losses[:, :1] + np.linspace(-0.3, 0.25, 8)[:, None] * np.array([1, -1])
    errors = np.full((8, 3), 1.0)
    assert not judged(clients, losses, errors, [10] * 8).chosen()
    known = judged(clients, losses, errors, [10] * 8)._replace(known=frozenset({0, 1}))
    assert known.chosen() == dict.fromkeys(clients, 0)
    assert served._evidence(known, 0, clients)[0].endswith("which was sure before training")


def test_own_training_stands_in_for_offsets_that_the_model_has_no_bias_for() -> None:
    losses = np.hstack([np.ones((8, 3)), np.full((8, 2), 0.9)])  # the one above, half an offset, a whole one, own
    found = judged([f"c{i}" for i in range(8)], losses, np.full((8, 5), 0.01), [10] * 8)
    assert served._possible(frozenset({1}), found) == {served.TRAINED}
    assert served._possible(frozenset({2}), found) == {2}


def test_the_comparison_before_training_is_the_first_look() -> None:
    data = find_scenario("digits-iid").build(clients=6, samples=40, seed=5)
    result = coterie.run("auto", data, **PLAN | {"rounds": 9})  # type: ignore[arg-type]
    [whole] = [event for event in result.history[-1].events if event.kind == "whole"]
    assert whole.details["looks"] == 2  # before training, and after round 8
    short = coterie.run("auto", data, **PLAN | {"rounds": 7})  # type: ignore[arg-type]
    [found], [whole] = ([e for e in short.history[i].events if e.kind == k] for i, k in ((0, "found"), (-1, "whole")))
    assert whole.text == f"no split: {found.text}"
