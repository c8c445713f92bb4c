"""Callbacks that send a run to a tracker: TensorBoard's event files, MLflow (a server or folder), Weights & Biases."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coterie.errors import ConfigError, extra
from coterie.methods import Event
from coterie.runs import Callback
from coterie.runs.records import MOST_CLUSTERS, RoundRecord, to_json

if TYPE_CHECKING:
    from coterie.runs import Result, Run


def scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    """The numbers of a round's record under the names that trackers show, such as `accuracy/mean`."""
    validation = {f"validation {name}": spread for name, spread in record.validation.items()}
    groups = {**record.metrics, **validation, "bytes": record.bytes}
    for group, numbers in groups.items():
        for name, value in to_json(numbers).items():
            if value is not None:
                yield f"{group}/{name}", float(value)
    yield "clusters", float(len(record.clusters))
    yield "seconds", record.seconds
    if len(record.clusters) <= MOST_CLUSTERS:
        for cluster in record.clusters:
            numbers = to_json(cluster) | cluster.metrics
            for name in ("members", "train_loss", "mean_norm", "max_norm", *cluster.metrics):
                if numbers[name] is not None:
                    yield f"cluster-{cluster.id}/{name}", float(numbers[name])


class TensorBoardCallback(Callback):
    """Writes a run's curves and events for TensorBoard; a resumed run goes on in the same folder."""

    def __init__(self, log_dir: str | Path) -> None:
        with extra("trackers", "TensorBoardCallback"):
            from torch.utils.tensorboard import SummaryWriter
        self._make_writer = SummaryWriter
        self.log_dir = Path(log_dir)
        self.writer: Any = None

    def on_start(self, run: Run, done: int) -> None:
        # What an earlier, killed attempt wrote of later rounds is set aside.
        purge = done + 1 if done else None
        self.writer = self._make_writer(str(self.log_dir), purge_step=purge, flush_secs=5)
        self.writer.add_text("run", json.dumps(run.labels, ensure_ascii=False), done)

    def on_event(self, t: int, event: Event) -> None:
        self.writer.add_text(f"events/{event.kind}", event.text, t)

    def on_round(self, record: RoundRecord) -> None:
        for name, value in scalars(record):
            self.writer.add_scalar(name, value, record.round)

    def on_end(self, result: Result) -> None:
        self.writer.add_text("summary", _summary_text(result), result.summary.rounds)
        self.writer.close()


class MLflowCallback(Callback):
    """Writes a run to MLflow. `run_id` resumes with a run there, for a run of ours that is resumed."""

    def __init__(
        self,
        experiment: str = "coterie",
        *,
        run_name: str | None = None,
        run_id: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        with extra("trackers", "MLflowCallback"):
            from mlflow import MlflowClient
            from mlflow.entities import Metric
            from mlflow.exceptions import MlflowException
        self._metric = Metric
        try:
            self.client = MlflowClient(tracking_uri=tracking_uri)
        except MlflowException as problem:
            raise ConfigError(f"MLflowCallback: tracking_uri={tracking_uri!r} cannot be used ({problem})") from None
        self.experiment, self.run_name = experiment, run_name
        self.run_id: Any = run_id

    def on_start(self, run: Run, done: int) -> None:
        if self.run_id is not None:
            self.client.update_run(self.run_id, status="RUNNING")
            return
        known = self.client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else self.client.create_experiment(self.experiment)
        self.run_id = self.client.create_run(experiment, run_name=self.run_name or _title(run)).info.run_id
        for key, value in _about(run).items():
            self.client.log_param(self.run_id, key, value)

    def on_event(self, t: int, event: Event) -> None:
        self.client.set_tag(self.run_id, f"round {t} {event.kind}", event.text)

    def on_round(self, record: RoundRecord) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, record.round) for name, value in scalars(record)]
        self.client.log_batch(self.run_id, metrics=metrics)

    def on_end(self, result: Result) -> None:
        self.client.set_tag(self.run_id, "summary", _summary_text(result))
        self.client.set_terminated(self.run_id, "FINISHED")


class WandbCallback(Callback):
    """Writes a run to Weights & Biases. `run_id` resumes a run there, for a run of ours that is resumed.

    `mode="offline"` keeps everything in a folder `wandb` under `folder`, to be sent later with `wandb sync`; by default
    the environment decides (WANDB_MODE).
    """

    def __init__(
        self,
        project: str = "coterie",
        *,
        run_name: str | None = None,
        run_id: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        folder: str | Path | None = None,
    ) -> None:
        with extra("wandb", "WandbCallback"):
            import wandb
        self._wandb = wandb
        self.project, self.run_name, self.run_id, self.mode = project, run_name, run_id, mode
        self.folder = None if folder is None else Path(folder)
        self.run: Any = None

    def on_start(self, run: Run, done: int) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        self.run = self._wandb.init(
            project=self.project,
            name=self.run_name or _title(run),
            id=self.run_id,
            resume="allow" if self.run_id is not None else None,
            mode=self.mode,
            dir=None if self.folder is None else str(self.folder),
            config=_about(run),
        )
        self.run_id = self.run.id

    def on_event(self, t: int, event: Event) -> None:
        self.run.summary[f"events/round {t} {event.kind}"] = event.text

    def on_round(self, record: RoundRecord) -> None:
        self.run.log(dict(scalars(record)), step=record.round)

    def on_end(self, result: Result) -> None:
        self.run.summary["summary"] = _summary_text(result)
        self.run.finish()


def _title(run: Run) -> str:
    return f"{run.labels['method']} on {run.labels['scenario']}"


def _about(run: Run) -> dict[str, Any]:
    return {**run.labels, "rounds": run.server.rounds, "clients": len(run.server.clients)}


def _summary_text(result: Result) -> str:
    """The summary as JSON, with the sizes of the clusters instead of their members."""
    sizes = result.summary.sizes
    return json.dumps(to_json(result.summary) | {"clusters": sizes if len(sizes) <= MOST_CLUSTERS else len(sizes)})
