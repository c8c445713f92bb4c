"""Metrics of a run: the same on every engine, in every record, and equal to what the models' outputs give."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import coterie
from coterie import metrics
from coterie.errors import ConfigError, ModelError, RunError
from coterie.federation import Client, Federation, Split
from coterie.federation.validation import hold_out
from coterie.runs.loading import load

NAMES = ["auc", "f1", "log-loss", "calibration"]
ONE_CLASS = "d"


def toy(classes: int = 3, n: int = 40, regression: bool = False) -> Federation:
    """Four clients; the test data of the last is of one class."""
    rng = np.random.default_rng(0)
    clients = []
    for name in ("a", "b", "c", ONE_CLASS):
        x = torch.from_numpy(rng.normal(size=(n, 4)).astype(np.float32))
        y = x[:, 0] if regression else (x[:, 0] * 1.5).round().clamp(-1, classes - 2).long() + 1
        if name == ONE_CLASS and not regression:
            y[30:] = 1
        clients.append(Client(name, Split(x[:20], y[:20]), Split(x[20:30], y[20:30]), Split(x[30:], y[30:])))
    return Federation(clients, None if regression else classes)


def wide() -> nn.Module:
    """Not recognised by the batched trainer."""
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def spread_of_logits(outputs: Tensor, labels: Tensor) -> float:
    return float(outputs.std())


@pytest.mark.parametrize("model", ["mlp:hidden=8", wide])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_records_hold_what_the_models_outputs_give(model: Any, precision: Any) -> None:
    federation = toy()
    result = coterie.run("fedavg", federation, model=model, rounds=2, metrics=NAMES, precision=precision, workers=1)
    assert set(result.summary.metrics) == {"loss", "accuracy", *NAMES} == set(result.history[-1].metrics)
    assert set(result.history[-1].clusters[0].metrics) == {"loss", "accuracy", *NAMES}
    values = []
    for row in result.clients:
        test, module = federation[row.client].test, result.model_of(row.client).double()
        result.layout.write(result.vector_of(row.client), module)
        outputs = module(test.x.double()).detach()
        expected = metrics.compute(NAMES, outputs, test.y)
        close = 1e-10 if precision == "float64" else 1e-5
        for name in NAMES:
            if math.isnan(expected[name]):
                assert (row.client, name) == (ONE_CLASS, "auc")
                assert row.metrics[name] is None
            else:
                assert row.metrics[name] == pytest.approx(expected[name], abs=close)
        if row.client != ONE_CLASS:
            assert set(test.y.tolist()) == {0, 1, 2}
            theirs = roc_auc_score(test.y, torch.softmax(outputs, 1), multi_class="ovr")
            assert row.metrics["auc"] == pytest.approx(theirs, abs=close)
            values.append(row.metrics["auc"])
    auc = result.summary.metrics["auc"]
    assert auc.clients == 3
    assert auc.mean == pytest.approx(np.mean(values))
    assert result.summary.accuracy.clients == 4


def test_metrics_change_no_other_number() -> None:
    options: dict[str, Any] = {"scenario": "digits-rotated", "clients": 4, "samples": 20, "rounds": 2}
    plain, more = coterie.run("cfl", **options), coterie.run("cfl", metrics="auc", **options)
    assert [row.metrics["loss"] for row in plain.clients] == [row.metrics["loss"] for row in more.clients]
    assert plain.summary.bytes == more.summary.bytes
    assert torch.equal(plain.models[0], more.models[0])


def test_worker_processes_give_the_same_numbers_with_own_functions() -> None:
    asked = ["auc", spread_of_logits, lambda outputs, labels: len(labels)]
    asked[2].__name__ = "rows"  # type: ignore[attr-defined]
    found = [
        coterie.run("fedavg", toy(), rounds=1, metrics=asked, workers=workers).clients  # type: ignore[arg-type]
        for workers in (1, 2)
    ]
    assert found[0] == found[1]
    assert found[0][0].metrics["rows"] == 10
    assert found[0][0].metrics["spread_of_logits"] > 0  # type: ignore[operator]


def test_private_layers_and_masks() -> None:
    federation = toy()
    plain = coterie.run("local", federation, rounds=1, metrics="auc")
    for row in plain.clients[:3]:
        test = federation[row.client].test
        expected = metrics.compute("auc", plain.model_of(row.client)(test.x), test.y)["auc"]
        assert row.metrics["auc"] == pytest.approx(expected, abs=1e-6)
    masked = coterie.run("local", federation, rounds=1, metrics="auc", privacy="permutation")
    assert masked.summary.metrics["auc"].clients == 3


def test_regressions_have_their_own() -> None:
    result = coterie.run("fedavg", toy(regression=True), model="linear", rounds=2, metrics="mae,rmse,r2")
    assert result.summary.metrics["rmse"].clients == 4
    row = result.clients[0]
    assert row.metrics["rmse"] == pytest.approx(math.sqrt(row.loss or 0), rel=1e-5)


def test_one_logit_per_sample() -> None:
    """A module with one output for two classes is a binary one, whatever loss it is trained with."""
    outputs, labels = torch.tensor([[-1.0], [2.0], [0.5]]), torch.tensor([0, 1, 0])
    found = metrics.compute("accuracy,auc,f1,log-loss", outputs, labels)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["auc"] == 1.0
    assert found["f1"] == pytest.approx(2 / 3)
    loss = nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.float())
    assert found["log-loss"] == pytest.approx(float(loss), abs=1e-6)


def test_refused_before_training() -> None:
    with pytest.raises(ConfigError, match="unknown metric 'auk': did you mean 'auc'"):
        coterie.run("fedavg", toy(), metrics="auk")
    with pytest.raises(ConfigError, match="'mae' does not go with labels that are classes"):
        coterie.run("fedavg", toy(), metrics="mae")
    with pytest.raises(ConfigError, match="monitor='auc': expected loss, accuracy, f1"):
        coterie.run("fedavg", toy(), metrics="f1", patience=2, monitor="auc")
    with pytest.raises(ConfigError, match="monitor='loss' goes with patience"):
        coterie.run("fedavg", toy(), monitor="loss")
    with pytest.raises(ConfigError, match="max_bytes='many'"):
        coterie.run("fedavg", toy(), max_bytes="many")
    with pytest.raises(ModelError, match="metric 'mine' raised ValueError: no"):
        coterie.run("fedavg", toy(), metrics={"mine": fails}, rounds=1)


def fails(outputs: Tensor, labels: Tensor) -> float:
    raise ValueError("no")


def test_metrics_from_a_file_and_after_a_resume(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def rows(outputs, labels):\n    return len(labels)\n")
    out = tmp_path / "run"
    first = coterie.run(
        "fedavg", scenario="digits-iid", clients=2, rounds=1, out=out, metrics=[f"{file}:rows", "f1", spread_of_logits]
    )
    assert set(first.test) == {"loss", "accuracy", "rows", "f1", "spread_of_logits"}
    with pytest.raises(RunError, match=r"metrics=…\), .* a function for each of spread_of_logits"):
        coterie.resume(out)
    again = coterie.resume(out, metrics={"spread_of_logits": spread_of_logits})
    assert again.clients == first.clients
    assert load(out).test == first.test


def test_validation_data_is_held_out_by_class() -> None:
    labels = torch.arange(100) % 4
    client = Client("a", Split(torch.arange(100.0)[:, None], labels), *[Split(torch.zeros(0, 1), labels[:0])] * 2)
    one = Client("one", Split(torch.ones(1, 1), labels[:1]), *[Split(torch.zeros(0, 1), labels[:0])] * 2)
    federation = Federation([client, one], 4)
    held = hold_out(federation, 0.2, seed=1)
    assert torch.bincount(held["a"].validation.y).tolist() == [5, 5, 5, 5]
    together = torch.cat([held["a"].train.x, held["a"].validation.x]).flatten().sort().values
    assert together.tolist() == list(range(100))
    assert len(held["one"].train) == 1
    assert len(held["one"].validation) == 0
    again, other = hold_out(federation, 0.2, seed=1), hold_out(federation, 0.2, seed=2)
    assert torch.equal(held["a"].validation.x, again["a"].validation.x)
    assert not torch.equal(held["a"].validation.x, other["a"].validation.x)
    assert len(federation["a"].train) == 100
    twice = hold_out(held, 0.5, seed=1)
    assert (len(twice["a"].train), len(twice["a"].validation)) == (40, 60)


def test_validation_metrics_beside_test_metrics() -> None:
    federation = toy()
    result = coterie.run("fedavg", federation, rounds=2, validation=0.2, metrics="auc")
    held = hold_out(federation, 0.2, seed=0)
    row = result.clients[0]
    data = held[row.client].validation
    assert len(data) == 14
    expected = metrics.compute("auc,accuracy", result.model_of(row.client)(data.x), data.y)
    assert row.validation["auc"] == pytest.approx(expected["auc"])
    assert row.validation["accuracy"] == pytest.approx(expected["accuracy"])
    assert result.validation["auc"] == result.history[-1].validation["auc"]
    assert result.test["auc"] != result.validation["auc"]


def test_no_index_of_agreement_without_groups_to_agree_with() -> None:
    one_group = Federation([Client(c.id, c.train, c.validation, c.test, 0) for c in toy()])
    assert coterie.run("fedavg", one_group, rounds=1).summary.ari is None
    assert coterie.run("fedavg", toy(), rounds=1).summary.ari is None
