"""What a run hands out: the model each client was judged with, behind privacy, fallback and private layers too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError, RunError
from coterie.federation import Client, Federation, Split
from coterie.methods import CFL
from coterie.randomness import derive
from coterie.runs.records import RoundRecord

SMALL: dict[str, Any] = {"scenario": "digits-permuted", "clients": 8, "groups": 2, "samples": 60, "rounds": 6}


def federation() -> Federation:
    return find_scenario("digits-permuted").build(clients=8, groups=2, samples=60, seed=derive(0, "scenario"))


def accuracy(module: torch.nn.Module, client: Client) -> float:
    with torch.no_grad():
        return float((module(client.test.x).argmax(1) == client.test.y).float().mean())


@pytest.mark.parametrize("method", ["fedper", "cfl", "local"])
def test_model_of_is_the_model_a_client_was_judged_with(method: str) -> None:
    result, clients = coterie.run(method, **SMALL), federation()
    for row in result.clients:
        assert accuracy(result.model_of(row.client), clients[row.client]) == pytest.approx(row.accuracy)


def test_model_of_follows_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(self: CFL, state: Any, server: Any) -> Any:
        return replace(state, fallback={"client-0": 0})

    monkeypatch.setattr(CFL, "finish", finish)
    result = coterie.run("cfl", **SMALL)
    assert len(result.clusters) == 2
    row = result.record_of("client-0")
    assert accuracy(result.model_of("client-0"), federation()["client-0"]) == pytest.approx(row.accuracy)
    assert torch.equal(result.vector_of("client-0"), result.state.tree.nodes[0].model)


def test_a_tree_grown_behind_a_mask_serves_and_places_like_any_other(tmp_path: Path) -> None:
    result = coterie.run("cfl", privacy="signed-permutation", out=tmp_path / "run", **SMALL)
    assert len(result.clusters) == 2
    loaded, clients = coterie.load(tmp_path / "run"), federation()
    assert loaded.assign(clients) == {row.client: row.cluster for row in result.clients}
    for row in result.clients:
        assert accuracy(loaded.model_of(row.client), clients[row.client]) == pytest.approx(row.accuracy)
        path = loaded.path_of(row.client)
        assert (min(path), max(path)) == (0, row.cluster)
        assert accuracy(path[row.cluster], clients[row.client]) == pytest.approx(row.accuracy)


def test_privacy_refuses_methods_that_train_some_layers() -> None:
    for method in ("fedcuau:clusters=2", "fedbabu"):
        with pytest.raises(ConfigError):
            coterie.run(method, privacy="permutation", **SMALL | {"rounds": 2})


def test_one_diverging_client_is_left_out_and_named_all_of_them_end_the_run() -> None:
    clients = list(federation())
    wild = Split(clients[0].train.x * 1e30, clients[0].train.y)
    mixed = Federation([Client("wild", wild, clients[0].validation, clients[0].test), *clients[1:]], 10)
    result = coterie.run("fedavg", mixed, model="mlp", rounds=2)
    assert [fault.client for record in result.history for fault in record.faults] == ["wild", "wild"]
    alone = Federation([Client("wild", wild, clients[0].validation, clients[0].test)], 10)
    with pytest.raises(RunError, match="lower the learning rate"):
        coterie.run("fedavg", alone, model="mlp", rounds=2)


def half_squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.nn.functional.cross_entropy(outputs, targets)


def test_a_run_with_a_loss_of_ones_own_goes_on_with_that_loss_only(tmp_path: Path) -> None:
    coterie.run("fedavg", loss=half_squared, out=tmp_path / "run", **SMALL | {"rounds": 2})
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(RunError, match="loss"):
        coterie.resume(tmp_path / "run")
    assert coterie.resume(tmp_path / "run", loss=half_squared).summary.rounds == 2


def test_a_lone_sample_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product with one row depends on where its tensors lie in memory: a checkpoint must not move them."""
    clients = list(federation())[:6]
    last = Client("lone", Split(clients[5].train.x[:1], clients[5].train.y[:1]), clients[5].validation, clients[5].test)
    lone = Federation([*clients[:5], last], 10)
    options: dict[str, Any] = {"model": "mlp", "rounds": 6, "batch_size": "full", "epochs": 5}
    whole = coterie.run("local", lone, **options)

    class Stop(BaseException):
        pass

    class Stopper:
        def on_start(self, run: Any, done: int) -> None: ...
        def on_event(self, t: int, event: Any) -> None: ...
        def on_end(self, result: Any) -> None: ...
        def on_round(self, record: RoundRecord) -> None:
            if record.round == 3:
                raise Stop

    monkeypatch.setattr("coterie.runs.loop.checkpoint_pause", lambda cost: 0.0)
    with pytest.raises(Stop):
        coterie.run("local", lone, out=tmp_path / "run", callbacks=[Stopper()], **options)
    resumed = coterie.resume(tmp_path / "run", federation=lone)
    assert all(torch.equal(a, b) for a, b in zip(resumed.models, whole.models, strict=True))
