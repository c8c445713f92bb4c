"""Clients that are served by mixtures of models: measured, recorded, loaded, exported and shown as such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.methods import Assignment, Info, Server
from coterie.models.ensemble import Ensemble, mix_outputs
from coterie.runs.records import mixtures
from coterie.snapshot import saved
from coterie_views.live.watched import WatchedRun
from coterie_views.report import write_report

WEIGHTS = {0: 0.25, 5: 0.75}


def clients(kind: str) -> Federation:
    """Four clients with two inputs and labels of three classes, of two, or real targets."""
    generator = torch.Generator().manual_seed(3)
    made = []
    for i in range(4):
        x = torch.randn(9 + i, 2, generator=generator)
        y = {
            "classes": torch.randint(3, (9 + i,), generator=generator),
            "logit": torch.randint(2, (9 + i,), generator=generator),
            "reals": torch.randn(9 + i, generator=generator),
        }[kind]
        made.append(Client(f"c{i}", Split(x, y), Split(x[:3], y[:3]), Split(x, y)))
    return Federation(made)


@saved
class Two:
    """Two models, and how often they were looked at."""

    one: Tensor
    other: Tensor
    t: int = 0


class Mixing:
    """Trains nothing: c0 and c1 have one model each, c2 a mixture that changes in round 2, c3 always the same."""

    def start(self, server: Server) -> Two:
        return Two(server.initial_model(0), server.initial_model(1))

    def round(self, state: Two, t: int, server: Server) -> tuple[Two, Info]:
        return Two(state.one, state.other, t), Info()

    def assignment(self, state: Two, server: Server) -> Assignment:
        later = WEIGHTS if state.t > 1 else {0: 0.5, 5: 0.5}
        return Assignment(
            [state.one, state.other], [["c0", "c2"], ["c1", "c3"]], ids=[0, 5], served_by={"c2": later, "c3": WEIGHTS}
        )


def by_hand(kind: str, outputs: list[Tensor], y: Tensor) -> tuple[Tensor, float]:
    """The mixture's prediction in plain probabilities, and its loss."""
    if kind == "reals":
        mixed = sum(w * o[:, 0] for w, o in zip(WEIGHTS.values(), outputs, strict=True))
        assert isinstance(mixed, Tensor)
        return mixed, float((mixed - y).square().mean())
    turn = torch.sigmoid if kind == "logit" else lambda o: torch.softmax(o, 1)
    mixed = sum(w * turn(o) for w, o in zip(WEIGHTS.values(), outputs, strict=True))
    assert isinstance(mixed, Tensor)
    if kind == "logit":
        mixed = torch.cat([1 - mixed, mixed], 1)
    return mixed, float(-mixed[torch.arange(len(y)), y].log().mean())


@pytest.mark.parametrize("kind", ["classes", "logit", "reals"])
@pytest.mark.parametrize("model", ["mlp:hidden=3", "own"])
def test_a_mixture_is_measured_and_predicts_by_the_mean_of_its_models(kind: str, model: str, tmp_path: Path) -> None:
    """On the fast trainer and, with a module of one's own, on the loop."""
    data = clients(kind)
    own = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 3 if kind == "classes" else 1))
    options: dict[str, Any] = {"loss": "bce"} if kind == "logit" else {}
    given = own if model == "own" else model
    result = coterie.run(Mixing(), data, model=given, rounds=2, workers=1, out=tmp_path / "run", **options)
    for row in result.clients:
        test = data[row.client].test
        if row.client in ("c0", "c1"):
            assert row.mixture == {}
            continue
        assert row.mixture == {"cluster-0": 0.25, "cluster-5": 0.75}
        assert row.model == "cluster-5"
        with torch.no_grad():
            outputs = [result.module_with(result.files[name])(test.x) for name in row.mixture]
        mixed, loss = by_hand(kind, outputs, test.y)
        assert row.loss == pytest.approx(loss, rel=1e-5)
        if kind == "reals":
            assert result.predict(test.x, client=row.client) == pytest.approx(mixed.numpy(), abs=1e-6)
        else:
            assert row.accuracy == pytest.approx(float((mixed.argmax(1) == test.y).float().mean()))
            found = result.predict(test.x, client=row.client, probabilities=True)
            np.testing.assert_allclose(found, mixed.numpy(), atol=1e-6)
        assert result.evaluate((test.x, test.y), client=row.client)["loss"] == pytest.approx(loss, rel=1e-5)


def test_further_metrics_are_those_of_the_mixture() -> None:
    data = clients("classes")
    result = coterie.run(Mixing(), data, model="mlp:hidden=3", rounds=2, workers=1, metrics=["f1", "calibration"])
    [row] = [row for row in result.clients if row.client == "c3"]
    again = result.evaluate((data["c3"].test.x, data["c3"].test.y), client="c3", metrics=["f1", "calibration"])
    assert row.metrics == pytest.approx(again, rel=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed") / "run"
    coterie.run("fedem:components=2", clients("classes"), model="mlp:hidden=3", rounds=3, workers=1, lr=0.5, out=path)
    return path


def test_rounds_record_mixtures_where_they_change(tmp_path: Path) -> None:
    data = clients("classes")
    result = coterie.run(Mixing(), data, model="mlp:hidden=3", rounds=3, workers=1, out=tmp_path / "run")
    assert [record.mixtures for record in result.history] == [
        {"c2": {0: 0.5, 5: 0.5}, "c3": WEIGHTS},
        {"c2": WEIGHTS},
        {},
    ]
    assert mixtures(result.history) == {"c2": WEIGHTS, "c3": WEIGHTS}
    stored = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert stored[1]["mixtures"] == {"c2": {"0": 0.25, "5": 0.75}}
    assert {record.kind for line in result.history for record in line.events} == set()  # nobody falls back


def test_a_loaded_mixture_is_the_fresh_one(folder: Path) -> None:
    result = coterie.load(folder)
    assert all(abs(sum(row.mixture.values()) - 1) < 1e-9 for row in result.clients)
    row = result.clients[0]
    with pytest.raises(ConfigError, match=r"'c0' is served by a mixture of models \(.*%.*use model_of"):
        result.vector_of(row.client)
    module = result.model_of(row.client)
    assert isinstance(module, Ensemble)
    assert not module.training
    with pytest.raises(ConfigError, match="give one of the two"):
        result.predict(clients("classes")["c0"].test.x, client="c0", cluster=0)


@pytest.mark.parametrize("format", ["torchscript", "onnx"])
def test_a_mixture_is_exported_as_one_model(format: str, folder: Path, tmp_path: Path) -> None:
    result, x = coterie.load(folder), clients("classes")["c0"].test.x
    expected = result.predict(x, client="c0", probabilities=True)
    if format == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxscript")
        runtime = pytest.importorskip("onnxruntime")
        result.export(tmp_path / "model.onnx", client="c0")
        [outputs] = runtime.InferenceSession(str(tmp_path / "model.onnx")).run(None, {"inputs": x.numpy()})
        found = torch.softmax(torch.from_numpy(outputs), 1).numpy()
    else:
        result.export(tmp_path / "model.ts", client="c0")
        found = torch.softmax(torch.jit.load(str(tmp_path / "model.ts"))(x), 1).detach().numpy()
        about = json.loads((tmp_path / "model.ts.json").read_text())
        assert about["mixture"] == result.record_of("c0").mixture
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_state_dict_holds_no_mixture(folder: Path, tmp_path: Path) -> None:
    result = coterie.load(folder)
    with pytest.raises(ConfigError, match="'c0' is served by a mixture of 2 models, a state dict holds one"):
        result.export(tmp_path / "model.pt", client="c0")
    result.export(tmp_path / "model.pt", cluster=result.record_of("c0").cluster)
    assert set(torch.load(tmp_path / "model.pt")) == {entry.name for entry in result.layout.entries}


def test_the_report_and_the_live_page_show_mixtures(folder: Path, tmp_path: Path) -> None:
    page = write_report(folder, tmp_path / "page.html").read_text()
    assert ">mixture<" in page
    assert "served by a mixture of the models, in which the heaviest weighs" in page
    row = coterie.load(folder).clients[0]
    heaviest = max(row.mixture, key=lambda name: row.mixture[name])
    shown = f"{heaviest.removeprefix('cluster-')}: {100 * row.mixture[heaviest]:.0f} %"
    assert shown in page
    watched = WatchedRun(folder, ".")
    watched.poll(None)
    assert {told["client"]: told["mixture"] for told in watched.clients()["rows"]}[row.client].startswith(shown)
    watched.summary = None  # as long as the run goes on
    watched.clients_version += 1
    assert {told["client"]: told["mixture"] for told in watched.clients()["rows"]}[row.client].startswith(shown)


def test_mixtures_of_sure_predictions_stay_finite() -> None:
    sure = torch.tensor([[[200.0], [-200.0]], [[300.0], [-300.0]]])
    mixed = mix_outputs(sure, torch.tensor([0.5, 0.5]), regression=False)
    assert torch.isfinite(mixed).all()
    assert mixed[0, 0] > 100 > -100 > mixed[1, 0]
    weightless = mix_outputs(torch.randn(2, 3, 4), torch.tensor([1.0, 0.0]), regression=False)
    assert torch.isfinite(weightless).all()


def test_a_model_of_ones_own_layers_is_no_mixture(tmp_path: Path) -> None:
    """FedSoft's clients have importance weights and one model each."""
    data = clients("classes")
    coterie.run("fedsoft:clusters=2", data, model="mlp:hidden=3", rounds=2, workers=1, out=tmp_path / "run")
    result = coterie.load(tmp_path / "run")
    for row in result.clients:
        assert row.private
        assert row.mixture
        assert torch.equal(result.vector_of(row.client), result.private[row.client])
        assert not isinstance(result.model_of(row.client), Ensemble)
    result.export(tmp_path / "model.pt", client="c0")
