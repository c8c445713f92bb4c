"""Runs that end early: by validation data, time, bytes or a callback; each is a finished run with a reason."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import coterie
from coterie.errors import CallbackError, RunError
from coterie.federation import Federation
from coterie.methods import Event
from coterie.runs.callbacks import ProgressLine, followed
from coterie.runs.folder import RunFolder
from coterie.runs.loading import load
from coterie.runs.records import Bytes, RoundRecord, SplitRecord, Spread, assignments, tree_of
from coterie.runs.stopping import Limits
from coterie.runs.store import Checkpoint, KeptRound

OPTIONS: dict[str, Any] = {"scenario": "digits-iid", "clients": 3, "samples": 30, "workers": 1}
OVERFITTING: dict[str, Any] = {"model": "mlp:hidden=16", "rounds": 20, "lr": 0.5, "epochs": 5, "workers": 1}


def noise() -> Federation:
    """Clients whose labels have nothing to do with their inputs: what is learnt beyond the classes' shares is wrong."""
    draw = torch.Generator().manual_seed(3)
    return Federation.from_tensors(
        {c: (torch.randn(60, 8, generator=draw), torch.randint(2, (60,), generator=draw)) for c in ("a", "b", "c")},
        splits=(0.5, 0.25, 0.25),
    )


class StopAt(coterie.Callback):
    def __init__(self, t: int, error: Exception | None = None) -> None:
        self.t, self.error = t, error or coterie.StopRun("enough")
        self.heard: list[str] = []

    def on_round(self, record: coterie.RoundRecord) -> None:
        if record.round == self.t:
            raise self.error

    def on_event(self, t: int, event: Event) -> None:
        self.heard.append(event.kind)


def test_patience_stops_and_restores_the_best_models(tmp_path: Path) -> None:
    result = coterie.run("fedavg", noise(), patience=3, out=tmp_path / "run", **OVERFITTING)
    values = [record.validation["loss"].mean or 0 for record in result.history]
    best = values.index(min(values)) + 1
    assert len(values) == best + 3 < 20
    summary = result.summary
    assert (summary.rounds, summary.best_round) == (best + 3, best)
    assert summary.stopped is not None
    assert f"was best in round {best}" in summary.stopped
    assert summary.validation["loss"].mean == values[best - 1]
    assert [event.kind for event in result.history[-1].events] == ["stopped", "restored"]
    # The models are those of a run that ends at the best round.
    shorter = coterie.run("fedavg", noise(), **OVERFITTING | {"rounds": best})
    assert torch.equal(result.models[0], shorter.models[0])
    loaded = load(tmp_path / "run")
    assert torch.equal(loaded.models[0], result.models[0])
    # Resuming does nothing more.
    again = coterie.resume(tmp_path / "run", federation=noise())
    assert again.summary.bytes == summary.bytes
    assert again.clients == result.clients
    assert torch.equal(again.models[0], result.models[0])
    assert RunFolder(tmp_path / "run").history() == list(result.history)


def test_the_best_models_stay_when_all_rounds_are_done() -> None:
    options = OVERFITTING | {"rounds": 8}
    whole = coterie.run("fedavg", noise(), patience=100, **options)
    values = [record.validation["loss"].mean or 0 for record in whole.history]
    best = values.index(min(values)) + 1
    assert best < 8
    assert (whole.summary.stopped, whole.summary.best_round, whole.summary.rounds) == (None, best, 8)
    assert whole.history[-1].restored == best


def test_where_the_last_round_is_the_best_nothing_is_restored() -> None:
    result = coterie.run("fedavg", noise(), patience=2, **OVERFITTING | {"rounds": 1})
    assert result.summary.best_round == 1
    assert result.history[0].restored is None
    assert not [event for event in result.history[0].events if event.kind == "restored"]


def test_a_monitor_that_grows() -> None:
    result = coterie.run("fedavg", noise(), patience=2, monitor="accuracy", **OVERFITTING)
    values = [record.validation["accuracy"].mean or 0 for record in result.history]
    assert result.summary.best_round == values.index(max(values)) + 1


def test_a_kill_and_a_resume_in_between_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    class Kill(coterie.Callback):
        def on_round(self, record: coterie.RoundRecord) -> None:
            if record.round == whole.summary.best_round + 1:  # type: ignore[operator]
                raise Killed

    whole = coterie.run("cfl", noise(), patience=3, out=tmp_path / "whole", **OVERFITTING)
    monkeypatch.setattr("coterie.runs.loop.checkpoint_pause", lambda cost: 0.0)
    with pytest.raises(Killed):
        coterie.run("cfl", noise(), patience=3, out=tmp_path / "run", callbacks=[Kill()], **OVERFITTING)
    resumed = coterie.resume(tmp_path / "run", federation=noise())
    assert resumed.summary.best_round == whole.summary.best_round
    assert resumed.summary.stopped == whole.summary.stopped
    assert resumed.clients == whole.clients
    assert torch.equal(resumed.models[0], whole.models[0])


def test_clusters_and_tree_are_those_of_the_restored_round() -> None:
    first = RoundRecord(1, [], Bytes(), 0.0, assignment={"a": 0, "b": 0})
    split = SplitRecord(0, [1, 2], [["a"], ["b"]])
    second = RoundRecord(2, [], Bytes(), 0.0, assignment={"a": 1, "b": 2}, splits=[split])
    assert assignments([first, second]) == {"a": 1, "b": 2}
    assert len(tree_of([first, second])) == 3
    undone = replace(second, restored=1)
    assert assignments([first, undone]) == {"a": 0, "b": 0}
    assert tree_of([first, undone]) == []


def test_patience_needs_validation_data() -> None:
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    federation = Federation.from_tensors({"a": {"train": (x, y), "test": (x, y)}})
    with pytest.raises(RunError, match="hold some of the training data out with validation="):
        coterie.run("fedavg", federation, patience=2, rounds=2)
    assert coterie.run("fedavg", federation, patience=2, validation=0.2, rounds=2).validation


def test_rounds_that_were_not_evaluated_do_not_count_as_without_progress() -> None:
    result = coterie.run("fedavg", noise(), patience=1, evaluate_every=4, **OVERFITTING | {"rounds": 12})
    assert result.summary.rounds % 4 == 0


@pytest.mark.parametrize("limit", [{"max_bytes": 1}, {"max_bytes": "1KB"}, {"max_seconds": 1e-9}])
def test_limits_stop_after_the_round_in_which_they_are_reached(tmp_path: Path, limit: dict[str, Any]) -> None:
    result = coterie.run("fedavg", out=tmp_path / "run", **OPTIONS, rounds=4, **limit)
    assert (result.summary.rounds, len(result.history)) == (1, 1)
    assert next(iter(limit)) in str(result.summary.stopped)
    assert coterie.resume(tmp_path / "run").summary.rounds == 1
    # With more room it goes on, as a run that was never stopped.
    more = coterie.resume(tmp_path / "run", **dict.fromkeys(limit, 10**9))
    whole = coterie.run("fedavg", **OPTIONS, rounds=4)
    assert (more.summary.rounds, more.summary.stopped) == (4, None)
    assert torch.equal(more.models[0], whole.models[0])
    assert more.summary.bytes == whole.summary.bytes


def test_limits_by_hand() -> None:
    seen = RoundRecord(7, [], Bytes(), 1.0, validation={"loss": Spread(mean=1.0, clients=2)})
    best = KeptRound(4, None, {}, 0.5)
    done = Checkpoint(7, None, {}, 60, 40, 3.0, best=best)
    assert Limits().reached([seen], done) is None
    assert Limits(patience=4).reached([seen], done) is None
    assert Limits(patience=3).reached([seen], done) is not None
    assert Limits(max_bytes=101, max_seconds=3.1).reached([seen], done) is None
    assert Limits(max_bytes=100).reached([seen], done) is not None
    assert Limits(max_seconds=3.0).reached([seen], done) is not None
    assert not Limits(patience=3).is_better({"loss": Spread(mean=0.5, clients=1)}, best)
    assert Limits(patience=3).is_better({"loss": Spread(mean=0.4, clients=1)}, best)
    assert not Limits(patience=3).is_better({"loss": Spread(clients=1)}, None)  # a loss that overflowed


def test_a_callback_stops_a_run_and_the_result_is_kept(tmp_path: Path) -> None:
    stopper = StopAt(2)
    result = coterie.run("cfl", out=tmp_path / "run", callbacks=[stopper], **OPTIONS, rounds=5)
    assert (result.summary.rounds, result.summary.stopped) == (2, "StopAt: enough")
    assert stopper.heard[-1] == "stopped"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == "StopAt: enough"
    whole = coterie.run("cfl", **OPTIONS, rounds=5)
    resumed = coterie.resume(tmp_path / "run")
    assert torch.equal(resumed.models[0], whole.models[0])
    assert resumed.summary.stopped is None
    assert [record.round for record in RunFolder(tmp_path / "run").history()] == [1, 2, 3, 4, 5]


def test_a_stop_in_the_last_round_is_no_stop() -> None:
    result = coterie.run("fedavg", callbacks=[StopAt(2)], **OPTIONS, rounds=2)
    assert (result.summary.rounds, result.summary.stopped) == (2, None)


def test_a_stopped_run_with_patience_goes_on_from_its_last_round(tmp_path: Path) -> None:
    whole = coterie.run("fedavg", noise(), patience=10, **OVERFITTING | {"rounds": 9})
    best = whole.summary.best_round or 0
    stop = StopAt(best + 2)
    options = OVERFITTING | {"rounds": 9}
    first = coterie.run("fedavg", noise(), patience=10, out=tmp_path / "run", callbacks=[stop], **options)
    assert first.history[-1].restored == best
    resumed = coterie.resume(tmp_path / "run", federation=noise())
    assert resumed.clients == whole.clients
    assert [record.metrics for record in resumed.history] == [record.metrics for record in whole.history]
    assert [record.restored for record in resumed.history][:-1] == [None] * (len(whole.history) - 1)


@pytest.mark.parametrize("out", [None, "run"])
def test_an_exception_in_a_callback_loses_nothing(tmp_path: Path, out: str | None) -> None:
    place = None if out is None else tmp_path / out
    broken, other = StopAt(2, ValueError("no room")), StopAt(99)
    with pytest.raises(CallbackError, match=r"StopAt\.on_round raised ValueError: no room after round 2") as caught:
        coterie.run("fedavg", callbacks=[broken, other], out=place, **OPTIONS, rounds=4)
    reached = coterie.run("fedavg", **OPTIONS, rounds=2)
    assert torch.equal(caught.value.result.models[0], reached.models[0])
    assert caught.value.result.clients == reached.clients
    assert isinstance(caught.value.__cause__, ValueError)
    if place is not None:
        assert "coterie.resume(" in str(caught.value)
        resumed = coterie.resume(place, callbacks=[StopAt(99)])
        assert torch.equal(resumed.models[0], coterie.run("fedavg", **OPTIONS, rounds=4).models[0])
        assert [record.round for record in resumed.history] == [1, 2, 3, 4]


def test_an_exception_at_the_end_keeps_the_finished_run(tmp_path: Path) -> None:
    class Broken(coterie.Callback):
        def on_end(self, result: coterie.Result) -> None:
            raise OSError("disk full")

    with pytest.raises(CallbackError, match=r"Broken\.on_end raised OSError: disk full: the run is complete") as caught:
        coterie.run("fedavg", callbacks=[Broken()], out=tmp_path / "run", **OPTIONS, rounds=1)
    assert caught.value.result.summary.rounds == 1
    assert load(tmp_path / "run").clients == caught.value.result.clients


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := Screen())
    monkeypatch.setattr("coterie.runs.callbacks.REWRITE_SECONDS", 0.0)
    coterie.run("fedavg", metrics="auc", max_bytes="1B", **OPTIONS, rounds=3)
    trainer, line, why, rest = screen.getvalue().split("\n")
    _, first, last = line.split("\r")
    assert trainer == "training: many clients in one product"
    assert first.startswith("fedavg on digits-iid: round 1/3  accuracy 0.")
    assert "  auc 0." in first
    assert "1 cluster" in last
    assert why.startswith("stopped after round 1: ")
    assert rest == ""


def test_silent_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    coterie.run("fedavg", **OPTIONS, rounds=1)
    assert capfd.readouterr() == ("", "")
    coterie.run("fedavg", progress=True, **OPTIONS, rounds=1)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "round 1/1" in shown.err


def test_progress_can_be_switched_off_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Screen())
    assert [type(callback) for callback in followed([], None)] == [ProgressLine]
    assert followed([], False) == []


def test_a_notebook_gets_the_line_on_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    class ZMQInteractiveShell:
        """The shell of a notebook's kernel."""

    notebook = ModuleType("IPython")
    notebook.get_ipython = ZMQInteractiveShell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setattr("sys.stdout", screen := io.StringIO())
    coterie.run("fedavg", **OPTIONS, rounds=1)
    assert screen.getvalue().count("\n") == 2
    assert "\rfedavg on digits-iid: 1 round  accuracy 0." in screen.getvalue()
