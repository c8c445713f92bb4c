"""A finished run at work: what it predicts, how it scores on new data, and what it is exported as."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.cli.main import main
from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError, CoterieError, DataError
from coterie.federation import Federation
from coterie.parameters import Layout
from coterie.runs import Result

WORDS = [f"digit {i}" for i in range(10)]


@pytest.fixture(scope="module")
def data() -> Federation:
    return find_scenario("digits-permuted").build(clients=6, groups=2, seed=3)


@pytest.fixture(scope="module")
def folder(data: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two clusters."""
    path = tmp_path_factory.mktemp("using") / "run"
    result = coterie.run("ifca:k=2", data, model="mlp:hidden=16", rounds=6, out=path)
    assert len(result.clusters) == 2
    return path


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return coterie.load(folder)


def named(result: Result) -> Result:
    """The same run, its classes called by words."""
    return replace(result, shape={**result.shape, "label_names": WORDS})


def test_a_model_predicts_what_its_module_says(result: Result, data: Federation) -> None:
    for row in result.clients:
        x = data[row.client].test.x
        with torch.no_grad():
            outputs = result.model_of(row.client)(x)
        found = result.predict(x, client=row.client)
        assert found.dtype == np.int64
        assert np.array_equal(found, outputs.argmax(1).numpy())
        assert np.array_equal(found, result.predict(x.numpy(), cluster=row.cluster))
        chances = result.predict(x, client=row.client, probabilities=True)
        assert np.allclose(chances, torch.softmax(outputs, 1).numpy())
        assert result.predict(x.tolist(), client=row.client).tolist() == found.tolist()


def test_new_data_is_scored_as_the_run_scores(result: Result, data: Federation) -> None:
    for row in result.clients:
        test = data[row.client].test
        for given in (test, (test.x, test.y), (test.x.numpy(), test.y.tolist())):
            found = result.evaluate(given, client=row.client)
            assert found == pytest.approx(row.metrics, abs=1e-6)


def test_classes_with_names_are_predicted_and_given_by_name(result: Result, data: Federation) -> None:
    words, test = named(result), data["client-0"].test
    numbers = result.predict(test.x, client="client-0")
    assert words.predict(test.x, client="client-0").tolist() == [WORDS[i] for i in numbers]
    assert words.predict(test.x, client="client-0", probabilities=True).shape == (len(test), 10)
    labels = [WORDS[i] for i in test.y]
    expected = pytest.approx(result.record_of("client-0").metrics, abs=1e-6)
    for y in (labels, np.array(labels), test.y):  # whole numbers are class numbers where no name is one
        assert words.evaluate((test.x, y), client="client-0") == expected
    assert words.evaluate(test, client="client-0") == expected
    with pytest.raises(DataError, match="label 'digit 33' is none of the run's: did you mean 'digit 3'"):
        words.evaluate((test.x[:1], ["digit 33"]), client="client-0")


def test_names_that_are_numbers_are_names(result: Result, data: Federation) -> None:
    """Labels 1 to 10 of a run that was given them so."""
    ones, test = (
        replace(result, shape={**result.shape, "label_names": [str(i + 1) for i in range(10)]}),
        data["client-0"].test,
    )
    expected = pytest.approx(result.record_of("client-0").metrics, abs=1e-6)
    for y in (test.y + 1, (test.y + 1).tolist(), (test.y + 1).double().numpy()):
        assert ones.evaluate((test.x, y), client="client-0") == expected
    assert ones.evaluate(test, client="client-0") == expected  # a federation has counted them from 0
    assert ones.predict(test.x, client="client-0").tolist() == [
        str(i + 1) for i in result.predict(test.x, client="client-0")
    ]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r, x, y: r.predict(x), r"the run has models for clusters 0, 1: say which by client=… or cluster=…"),
        (lambda r, x, y: r.predict(x, client="client-0", cluster=0), "give one of the two"),
        (lambda r, x, y: r.predict(x, cluster=7), "no model of cluster 7: there is one of 0, 1"),
        (lambda r, x, y: r.predict(x, client="client0"), "did you mean 'client-0'"),
        (lambda r, x, y: r.predict(x[0], cluster=0), r"shape \(1, 8, 8\).*takes \(n, 1, 8, 8\).*first dimension of 1"),
        (lambda r, x, y: r.predict(torch.zeros(4, 64), cluster=0), r"shape \(4, 64\).*takes \(n, 1, 8, 8\)"),
        (lambda r, x, y: r.predict(x / 0, cluster=0), "not finite"),
        (lambda r, x, y: r.predict("abc.txt", cluster=0), "abc.txt: no such file"),
        (lambda r, x, y: r.predict(["a"], cluster=0), "no array of numbers"),
        (lambda r, x, y: r.predict((255 * x).to(torch.uint8), cluster=0), "are uint8, which is scaled"),
        (lambda r, x, y: r.evaluate(x, cluster=0), "has no labels"),
        (lambda r, x, y: r.evaluate((x, y + 9), cluster=0), "label 1[0-8]: the run has 10 classes, 0 to 9"),
        (lambda r, x, y: r.evaluate((x, y[:3]), cluster=0), "with 3 labels: give one label for each sample"),
        (lambda r, x, y: r.evaluate((x, y + 0.5), cluster=0), "real numbers, the run has classes 0 to 9"),
        (lambda r, x, y: r.export("m.pt", cluster=0, format="pickle"), "format='pickle'"),
    ],
)
def test_what_does_not_fit_is_one_line(call: Any, words: str, result: Result, data: Federation) -> None:
    test = data["client-0"].test
    with pytest.raises(CoterieError, match=words) as found:
        call(result, test.x, test.y)
    assert "\n" not in str(found.value)


def test_inputs_that_came_as_bytes_stay_on_their_scale(result: Result, data: Federation) -> None:
    scaled, x = replace(result, shape={**result.shape, "scaled": True}), data["client-0"].test.x
    whole = (x * 255).round().to(torch.uint8)
    assert np.array_equal(scaled.predict(whole, cluster=0), result.predict(whole.float() / 255, cluster=0))
    with pytest.raises(DataError, match=r"go up to 255, the run's were scaled to .0, 1.: give uint8, or divide by 255"):
        scaled.predict(whole.float(), cluster=0)


def test_tokens_stay_whole(result: Result) -> None:
    tokens = replace(result, shape={**result.shape, "dtype": "int64"})
    with pytest.raises(DataError, match="takes whole ones"):
        tokens.predict(torch.rand(2, 1, 8, 8), cluster=0)


def test_a_regression_gives_numbers() -> None:
    line = find_scenario("linear-mixture").build(clients=4, samples=20, seed=1)
    result = coterie.run("fedavg", line, model="linear", rounds=2)
    test = line.clients[0].test
    found = result.predict(test.x)
    with torch.no_grad():
        assert np.allclose(found, result.model_of(line.ids[0])(test.x).reshape(-1).numpy())
    assert found.shape == (len(test),)
    assert result.evaluate(test)["loss"] == pytest.approx(result.record_of(line.ids[0]).loss, rel=1e-5)
    assert "accuracy" not in result.evaluate(test)
    with pytest.raises(ConfigError, match="this run is a regression"):
        result.predict(test.x, probabilities=True)


def test_one_logit_per_sample_is_for_the_second_class(result: Result, data: Federation) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
    shape, layout = {**result.shape, "classes": 2}, Layout.of(net)
    files = {name: layout.read(net) for name in result.files}
    one = replace(result, shape=shape, layout=layout, files=files, architecture=lambda seed: net)
    x = data["client-0"].test.x
    with torch.no_grad():
        logits = net(x)[:, 0]
    assert np.array_equal(one.predict(x, cluster=0), (logits > 0).long().numpy())
    chances = one.predict(x, cluster=0, probabilities=True)
    assert np.allclose(chances, torch.stack([torch.sigmoid(-logits), torch.sigmoid(logits)], 1).numpy(), atol=1e-6)
    y = (torch.arange(len(x)) % 2).long()
    loss = nn.functional.binary_cross_entropy_with_logits(logits, y.float())
    right = float(((logits > 0) == y.bool()).float().mean())
    assert one.evaluate((x, y), cluster=0) == pytest.approx({"loss": float(loss), "accuracy": right})


def test_private_layers_belong_to_a_client_not_to_a_cluster(data: Federation) -> None:
    result = coterie.run("fedper", data, model="mlp:hidden=8", rounds=1)
    x = data["client-0"].test.x
    assert len(result.predict(x, client="client-0")) == len(x)
    with pytest.raises(ConfigError, match="keep layers of their own, so it has no whole model: give client=…"):
        result.predict(x)
    alone = coterie.run("local", data, model="mlp:hidden=8", rounds=1)
    assert np.array_equal(alone.predict(x, cluster=1), alone.predict(x, client=alone.clusters[1][0]))


def test_a_result_that_knows_too_little_says_so(result: Result, data: Federation) -> None:
    x = data["client-0"].test.x
    with pytest.raises(ConfigError, match="what the model takes is not known here"):
        replace(result, shape={}).predict(x, cluster=0)
    with pytest.raises(ConfigError, match="it kept no models"):
        replace(result, files={}).predict(x, cluster=0)


@pytest.mark.parametrize("ending", [".pt", ".safetensors", ".ts", ".onnx"])
def test_an_exported_model_answers_the_same_without_coterie(
    ending: str, result: Result, data: Federation, tmp_path: Path
) -> None:
    client = data["client-1"]
    path = named(result).export(tmp_path / "deep" / f"model{ending}", client=client.id)
    with torch.no_grad():
        expected = result.model_of(client.id)(client.test.x)
        if ending == ".ts":
            outputs = torch.jit.load(path)(client.test.x)
        elif ending == ".onnx":
            reference = pytest.importorskip("onnx.reference", reason="needs coterie[export]")
            outputs = torch.from_numpy(
                reference.ReferenceEvaluator(str(path)).run(None, {"inputs": client.test.x.numpy()})[0]
            )
        else:
            module = result.architecture(1)
            if ending == ".pt":
                module.load_state_dict(torch.load(path, weights_only=True))
            else:
                from safetensors.torch import load_file

                module.load_state_dict(load_file(path))
            outputs = module.eval()(client.test.x)
    assert torch.allclose(outputs, expected, atol=1e-5)
    about = json.loads((tmp_path / "deep" / f"model{ending}.json").read_text())
    assert about["inputs"] == {"shape": ["n", 1, 8, 8], "dtype": "float32"}
    assert (about["client"], about["cluster"]) == (client.id, result.record_of(client.id).cluster)
    assert (about["classes"], about["label_names"], about["outputs"]) == (10, WORDS, "logits (n, classes)")


def test_onnx_without_its_packages_names_the_extra(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r'pip install "coterie\[export\]"'):
        result.export(tmp_path / "model.onnx", cluster=0)
    assert not list(tmp_path.iterdir())


class Moody(nn.Module):
    """Neither a trace nor a script can follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = [self.layer(row.reshape(1, -1)) * len(sys.path) for row in x]
        return torch.cat(rows)


def test_a_model_that_cannot_be_traced_says_what_can_be_done(data: Federation, tmp_path: Path) -> None:
    result = coterie.run("fedavg", data, model=Moody(), rounds=1)
    with pytest.raises(ConfigError, match=r"cannot be written as TorchScript.*use format='state_dict'"):
        result.export(tmp_path / "model.ts")
    assert result.export(tmp_path / "model.pt").exists()


class Lines:
    """Stands for a table's preprocessing: two columns, a third the label."""

    label_names = ("no", "yes")
    client_column, decimal = None, "."
    label_mean, label_scale = 0.0, 1.0

    def transform(self, data: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows = list(csv.DictReader(Path(data).read_text().splitlines()))
        x = torch.tensor([[float(row["a"]), float(row["b"])] for row in rows])
        y = torch.tensor([self.label_names.index(row["y"]) for row in rows]) if "y" in rows[0] else None
        return x, y

    def to_json(self) -> dict[str, Any]:
        return {"label": "y"}


def test_raw_tables_go_in_and_names_come_out(tmp_path: Path) -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    clients = Federation.from_tensors({"a": (x[:30], y[:30]), "b": (x[30:], y[30:])})
    result = replace(coterie.run("fedavg", clients, model="logistic", rounds=20, lr=1.0), table=Lines())
    rows = [f"{a:.6f},{b:.6f}" for a, b in x.tolist()]
    names = ["yes" if label else "no" for label in y]
    (tmp_path / "new.csv").write_text("\n".join(["a,b", *rows]))
    (tmp_path / "old.csv").write_text(
        "\n".join(["a,b,y", *(f"{row},{name}" for row, name in zip(rows, names, strict=True))])
    )
    found = result.predict(tmp_path / "new.csv")
    assert set(found) == {"no", "yes"}
    assert np.mean(found == names) > 0.9
    assert result.evaluate(str(tmp_path / "old.csv"))["accuracy"] == pytest.approx(np.mean(found == names))
    with pytest.raises(DataError, match="has no labels"):
        result.evaluate(tmp_path / "new.csv")
    assert result.assign(tmp_path / "new.csv") == {"new": 0}
    result.export(tmp_path / "model.pt")
    assert json.loads((tmp_path / "model.pt.json").read_text())["table"] == {"label": "y"}
    with pytest.raises(DataError, match="the run was not trained on tables"):
        replace(result, table=None).predict(tmp_path / "new.csv")


def test_the_commands_do_the_same(
    folder: Path, result: Result, data: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = data["client-1"]
    file, out = tmp_path / "new.npz", tmp_path / "made" / "predictions.csv"
    np.savez(file, x=client.test.x.numpy(), y=client.test.y.numpy())
    main(["predict", str(folder), str(file), "--client", client.id, "--out", str(out)])
    assert capsys.readouterr().out == f"{len(client.test)} predictions: {out}\n"
    rows = list(csv.reader(out.read_text().splitlines()))
    assert rows[0] == ["prediction"]
    expected = result.predict(client.test.x, client=client.id)
    assert [int(row[0]) for row in rows[1:]] == expected.tolist()
    main(["predict", str(folder), str(file), "--client", client.id, "--probabilities"])
    rows = list(csv.reader(capsys.readouterr().out.splitlines()))
    assert rows[0] == ["prediction", *(f"p({i})" for i in range(10))]
    assert all(sum(map(float, row[1:])) == pytest.approx(1, abs=1e-5) for row in rows[1:])
    main(["evaluate", str(folder), str(file), "--client", client.id])
    said = dict(line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert {name: float(value) for name, value in said.items()} == pytest.approx(
        result.record_of(client.id).metrics, rel=1e-4
    )
    main(["export", str(folder), str(tmp_path / "model.ts"), "--cluster", "0"])
    assert capsys.readouterr().out == f"{tmp_path / 'model.ts'}\n"
    assert torch.jit.load(tmp_path / "model.ts")(client.test.x).shape == (len(client.test), 10)
    with pytest.raises(SystemExit):
        main(["predict", str(folder), str(file)])
    assert capsys.readouterr().err == (
        "coterie: the run has models for clusters 0, 1: say which by client=… or cluster=…\n"
    )
