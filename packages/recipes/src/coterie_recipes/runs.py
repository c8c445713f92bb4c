"""Runs of a study: their configuration, and runs that are kept in the study's folder and resumed after a stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from coterie import Callback, Federation, Method, Result, resume, run
from coterie.methods import Event
from coterie.runs import RoundRecord, Run, RunConfig, make_config
from coterie_recipes.base import Study

T = TypeVar("T")
SCENARIO_KEYS = frozenset({"scenario", "clients", "samples", "groups"})
"""What describes a federation by name, and has no place beside one that is given."""
LOGGED_ROUNDS = 10
"""Rounds between two lines with metrics."""


def study_config(study: Study, seed: int, **options: Any) -> RunConfig:
    """The configuration of a run of this study."""
    return make_config({"seed": seed, "data_dir": study.data_dir, "workers": study.workers} | options)


def kept_run(
    study: Study,
    key: str,
    config: RunConfig,
    *callbacks: Callback,
    method: Method | None = None,
    federation: Federation | None = None,
) -> Result:
    """Do a run in the study's folder `runs/KEY`, or resume it there where an earlier attempt has begun it.

    Args:
        study: whose folder, data folder and workers are used.
        key: name of the run in the folder.
        config: the run's configuration.
        callbacks: follow the run.
        method: takes the place of the configuration's method.
        federation: takes the place of the configuration's scenario.
    """
    folder = study.out / "runs" / key
    if (folder / "config.json").exists():
        return resume(
            folder,
            federation=federation,
            method=method,
            callbacks=callbacks,
            data_dir=study.data_dir,
            workers=study.workers,
            progress=False,
        )
    return new_run(config, *callbacks, method=method, federation=federation, out=folder)


def new_run(
    config: RunConfig,
    *callbacks: Callback,
    method: Method | None = None,
    federation: Federation | None = None,
    **options: Any,
) -> Result:
    """Do a run from a configuration; arguments as in `kept_run`, `options` are further ones of `coterie.run`."""
    values = config.model_dump(exclude_unset=True) | options
    if federation is not None:
        values = {key: value for key, value in values.items() if key not in SCENARIO_KEYS}
    if method is not None:
        values["method"] = method
    return run(federation=federation, callbacks=callbacks, progress=False, **values)


class AtTheEnd(Callback, Generic[T]):
    """Measures a finished run and its state while the run's engine is open; what it found is `measured`."""

    def __init__(self, measure: Callable[[Run, Any], T]) -> None:
        self.measure = measure

    def on_start(self, run: Run, done: int) -> None:
        self.run = run

    def on_end(self, result: Result) -> None:
        self.run.server.needs = None  # what is measured is not the method's
        self.measured = self.measure(self.run, result.state)


class ProgressLogger(Callback):
    """Logs a run's events, and in every tenth round its metrics."""

    def __init__(self, study: Study) -> None:
        self.log = study.log

    def on_start(self, run: Run, done: int) -> None:
        if done:
            self.log(f"  resumes after round {done}")

    def on_event(self, t: int, event: Event) -> None:
        self.log(f"  round {t}: {event.text}")

    def on_round(self, record: RoundRecord) -> None:
        if record.round % LOGGED_ROUNDS:
            return
        means = {"accuracy": record.accuracy.mean, "test loss": record.loss.mean}
        values = ", ".join(f"{name} {value:.3f}" for name, value in means.items() if value is not None)
        if values:
            self.log(f"  round {record.round}: {values}")

    def on_end(self, result: Result) -> None:
        """Nothing more: the recipe shows the result."""
