"""Trackers are read back with the trackers' own readers: what a run says is what they hold."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

import coterie
from coterie.errors import ConfigError
from coterie.runs.records import Bytes, ClusterRecord, RoundRecord, Spread
from coterie_views.trackers import MLflowCallback, TensorBoardCallback, WandbCallback, scalars

METHOD = "oneshot:k=2,warmup_rounds=1"


def test_scalars_are_named_by_what_they_measure() -> None:
    cluster = ClusterRecord(4, 2, metrics={"loss": None, "accuracy": 0.75})
    record = RoundRecord(3, [cluster], Bytes(up=7), 0.25, {"accuracy": Spread(mean=0.5)})
    assert dict(scalars(record)) == {
        "accuracy/mean": 0.5,
        "bytes/up": 7.0,
        "bytes/down": 0.0,
        "clusters": 1.0,
        "seconds": 0.25,
        "cluster-4/members": 2.0,
        "cluster-4/accuracy": 0.75,
    }


def test_many_clusters_are_counted_only() -> None:
    record = RoundRecord(1, [ClusterRecord(i, 1) for i in range(65)], Bytes(), 0.0)
    assert dict(scalars(record)) == {"clusters": 65.0, "seconds": 0.0, "bytes/up": 0.0, "bytes/down": 0.0}


def test_tensorboard_holds_every_round_and_event(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs coterie[trackers]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = TensorBoardCallback(tmp_path)
    result = coterie.run(METHOD, scenario="digits-permuted", rounds=3, clients=6, callbacks=[callback])
    told = EventAccumulator(str(tmp_path))
    told.Reload()
    points = told.Scalars("accuracy/mean")
    assert [point.step for point in points] == [1, 2, 3]
    assert [point.value for point in points] == pytest.approx([r.accuracy.mean for r in result.history])
    assert "cluster-0/accuracy" in told.Tags()["scalars"]
    events = [event for record in result.history for event in record.events]
    assert events
    assert {f"events/{event.kind}/text_summary" for event in events} <= set(told.Tags()["tensors"])
    (words,) = told.Tensors(f"events/{events[0].kind}/text_summary")
    assert words.tensor_proto.string_val[0].decode() == events[0].text


def test_mlflow_holds_parameters_metrics_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    pytest.importorskip("mlflow", reason="needs coterie[trackers]")
    callback = MLflowCallback("trial", tracking_uri=tmp_path.as_uri())
    result = coterie.run(METHOD, scenario="digits-permuted", rounds=3, clients=6, callbacks=[callback])
    assert callback.run_id is not None
    stored = callback.client.get_run(callback.run_id)
    assert stored.info.status == "FINISHED"
    assert stored.data.params["scenario"] == "digits-permuted"
    assert stored.data.params["clients"] == "6"
    told = callback.client.get_metric_history(callback.run_id, "accuracy/mean")
    assert {metric.step: metric.value for metric in told} == pytest.approx(
        {record.round: record.accuracy.mean for record in result.history}
    )
    assert any(tag.endswith("clustered") for tag in stored.data.tags)


@pytest.mark.parametrize(
    ("make", "package"),
    [(lambda: TensorBoardCallback("x"), "torch.utils.tensorboard"), (lambda: MLflowCallback(), "mlflow")],
)
def test_a_missing_tracker_names_the_extra(make: object, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"coterie\[trackers\]"):
        make()  # type: ignore[operator]


def test_wandb_gets_every_round_once_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: dict[str, Any] = {}
    logged: list[tuple[int, dict[str, float]]] = []

    class Recorder:
        """What `wandb.init` returns, as far as it is used."""

        id = "abc"
        summary: ClassVar[dict[str, str]] = {}
        ended = False

        def log(self, numbers: dict[str, float], step: int) -> None:
            logged.append((step, numbers))

        def finish(self) -> None:
            Recorder.ended = True

    stub = ModuleType("wandb")
    stub.init = lambda **settings: began.update(settings) or Recorder()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", stub)
    callback = WandbCallback("trial", mode="offline", folder=tmp_path / "kept")
    result = coterie.run(METHOD, scenario="digits-permuted", rounds=3, clients=6, callbacks=[callback])
    assert began["project"] == "trial"
    assert began["mode"] == "offline"
    assert began["config"]["clients"] == 6
    assert began["resume"] is None
    assert (tmp_path / "kept").is_dir()
    assert logged == [(record.round, dict(scalars(record))) for record in result.history]
    assert Recorder.ended
    events = [(record.round, event) for record in result.history for event in record.events]
    assert events
    for t, event in events:
        assert Recorder.summary[f"events/round {t} {event.kind}"] == event.text
    assert '"method"' in Recorder.summary["summary"]
    again = WandbCallback("trial", run_id=callback.run_id)
    coterie.run("fedavg", scenario="digits-iid", rounds=1, clients=2, callbacks=[again])
    assert (began["id"], began["resume"]) == ("abc", "allow")
