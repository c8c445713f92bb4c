"""A result loaded from its folder is the one that the run returned, and what cannot be loaded says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError, RunError
from coterie.federation import Federation
from coterie.methods import Assignment, Info, Server
from coterie.randomness import derive
from coterie.runs import Result, loop
from coterie.runs.records import RoundRecord
from coterie.snapshot import save_snapshot, saved

SMALL: dict[str, Any] = {"scenario": "digits-permuted", "clients": 8, "groups": 2, "samples": 60, "workers": 1}


def federation() -> Federation:
    return find_scenario("digits-permuted").build(clients=8, groups=2, samples=60, seed=derive(0, "scenario"))


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def check_same(fresh: Result, loaded: Result, data: Federation, folder: Path) -> None:
    """All that a result holds or answers is the same."""
    assert loaded.summary == fresh.summary
    assert loaded.clients == fresh.clients
    assert loaded.history == fresh.history
    assert type(loaded.history) is type(fresh.history)
    assert loaded.clusters == fresh.clusters
    assert loaded.layout == fresh.layout
    assert loaded.path == fresh.path == folder
    assert loaded.private_layers == fresh.private_layers
    assert len(loaded.models) == len(fresh.models) == len(fresh.clusters)
    assert all(same(a, b) for a, b in zip(loaded.models, fresh.models, strict=True))
    for one, other in ((loaded.files, fresh.files), (loaded.private, fresh.private)):
        assert set(one) == set(other)
        assert all(same(one[name], other[name]) for name in one)
    for client in data:
        row = fresh.record_of(client.id)
        if row.private or not row.mixture:
            assert same(loaded.vector_of(client.id), fresh.vector_of(client.id))
        ours, theirs = loaded.model_of(client.id), fresh.model_of(client.id)
        assert not ours.training
        with torch.no_grad():
            assert torch.equal(ours(client.test.x), theirs(client.test.x))
    for name, result in (("fresh", fresh), ("loaded", loaded)):
        save_snapshot(result.state, folder.parent / name)
    assert (folder.parent / "loaded").read_bytes() == (folder.parent / "fresh").read_bytes()
    assert loaded._repr_html_() == fresh._repr_html_()


@pytest.mark.parametrize(
    ("method", "rounds", "more"),
    [
        ("fedavg", 2, {}),
        ("cfl", 6, {}),
        ("ifca:k=3", 4, {}),
        ("fedper", 2, {}),
        ("local", 2, {}),
        ("local", 2, {"privacy": "signed-permutation"}),
        ("fedem", 2, {"privacy": "signed-permutation"}),
        ("fedrc:components=2", 3, {"participation": 0.3, "personalise": 1}),
        ("fedsoft", 3, {"participation": 0.3}),
        ("fedsoft", 2, {"privacy": "signed-permutation"}),
        ("fedper", 3, {"participation": 0.3, "personalise": 1}),
        ("fedavg", 2, {"precision": "float64"}),
        ("fedavg", 2, {"evaluate_every": 2, "model": "mlp:hidden=4"}),
    ],
)
def test_a_loaded_result_is_the_fresh_one(method: str, rounds: int, more: dict[str, Any], tmp_path: Path) -> None:
    fresh = coterie.run(method, rounds=rounds, out=tmp_path / "run", **SMALL, **more)
    if method == "cfl":
        assert len(fresh.clusters) == 2
    check_same(fresh, coterie.load(tmp_path / "run"), federation(), tmp_path / "run")
    assert coterie.Result is Result
    assert coterie.load(str(tmp_path / "run")).summary == fresh.summary


def test_a_resumed_run_of_a_finished_one_is_the_same_result(tmp_path: Path) -> None:
    fresh = coterie.run("cfl", rounds=6, out=tmp_path / "run", **SMALL)
    again = coterie.resume(tmp_path / "run", workers=1)
    assert again.summary == fresh.summary
    assert again.clients == fresh.clients


class Stop(BaseException):
    pass


class StopAfter:
    """Ends a run in the middle, as an interrupt would."""

    def __init__(self, t: int) -> None:
        self.t = t

    def on_start(self, run: Any, done: int) -> None: ...
    def on_event(self, t: int, event: Any) -> None: ...
    def on_end(self, result: Any) -> None: ...
    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.t:
            raise Stop


@pytest.mark.parametrize("pause", [0.0, 1e9], ids=["with a checkpoint", "before the first checkpoint"])
def test_an_unfinished_run_says_how_to_resume(pause: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "checkpoint_pause", lambda cost: pause)
    with pytest.raises(Stop):
        coterie.run("fedavg", rounds=3, out=tmp_path / "run", callbacks=[StopAfter(2)], **SMALL)
    with pytest.raises(RunError, match=f"not finished: resume it with 'coterie resume {tmp_path / 'run'}'"):
        coterie.load(tmp_path / "run")
    fresh = coterie.resume(tmp_path / "run", workers=1)
    assert coterie.load(tmp_path / "run").summary == fresh.summary


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(RunError, match=f"{path}: not a run folder"):
            coterie.load(path)


@pytest.mark.parametrize("name", ["cluster-1", "private", "cluster-0"])
def test_a_missing_or_damaged_model_is_named(name: str, tmp_path: Path) -> None:
    coterie.run("local", rounds=1, out=tmp_path / "run", **SMALL)
    file = tmp_path / "run" / "models" / f"{name}.safetensors"
    file.write_bytes(b"not a model")
    with pytest.raises(RunError, match=str(file)):
        coterie.load(tmp_path / "run")
    file.unlink()
    with pytest.raises(RunError, match=str(file)):
        coterie.load(tmp_path / "run")


def test_a_model_of_another_shape_is_named(tmp_path: Path) -> None:
    for name, hidden in (("small", 4), ("large", 9)):
        coterie.run("fedavg", rounds=1, model=f"mlp:hidden={hidden}", out=tmp_path / name, **SMALL)
    here, there = (tmp_path / name / "models" / "cluster-0.safetensors" for name in ("small", "large"))
    here.write_bytes(there.read_bytes())
    with pytest.raises(RunError, match=f"{here}: holds another model than the run's"):
        coterie.load(tmp_path / "small")


def test_a_module_from_python_is_given_again(tmp_path: Path) -> None:
    data = federation()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    fresh = coterie.run("fedavg", data, model=net, rounds=1, out=tmp_path / "run")
    check_same(fresh, coterie.load(tmp_path / "run", model=net), data, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"'Sequential'.*model="):
        coterie.load(tmp_path / "run")


@saved
class Grove:
    """The state of a method of somebody's own."""

    trees: Tensor


class Still:
    """Does nothing."""

    def start(self, server: Server) -> Grove:
        return Grove(server.initial_model())

    def round(self, state: Grove, t: int, server: Server) -> tuple[Grove, Info]:
        return state, Info()

    def assignment(self, state: Grove, server: Server) -> Assignment:
        return Assignment([state.trees], [server.clients])


def test_a_run_of_a_method_of_ones_own_is_loaded_too(tmp_path: Path) -> None:
    data = federation()
    fresh = coterie.run(Still(), data, model="mlp", rounds=2, out=tmp_path / "run")
    check_same(fresh, coterie.load(tmp_path / "run"), data, tmp_path / "run")


def test_the_only_model_of_a_stored_run_is_every_newcomers(tmp_path: Path) -> None:
    coterie.run("fedavg", rounds=1, out=tmp_path / "run", **SMALL)
    assert coterie.load(tmp_path / "run").assign(federation()) == dict.fromkeys(federation().ids, 0)
