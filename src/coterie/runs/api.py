"""Start and resume runs: what `coterie.run` and `coterie.resume` do, and the command with them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from coterie.errors import ConfigError, RunError
from coterie.federation import Federation
from coterie.losses import Loss
from coterie.methods import Method
from coterie.runs.assemble import DEFAULT_SCENARIO, Model, assemble, check_same_run, stored_values
from coterie.runs.config import PLACE_KEYS, RunConfig, make_config
from coterie.runs.folder import RunFolder
from coterie.runs.loop import Callback, execute
from coterie.runs.result import Result


def run(
    method: str | Method = "fedavg",
    federation: Federation | None = None,
    *,
    model: Model | None = None,
    loss: Loss | None = None,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Result:
    """Train a method on a federation and return clusters, models, history and summary.

    Give a `federation`, or name a `scenario=` or a folder `data=`. `model` is a known name, an `nn.Module`, or a
    callable that makes one. With `out`, everything is also written to that folder and can be resumed. The other
    options are those of the command: rounds, seed, lr, epochs, batch_size, participation, workers, …
    """
    values = dict(options)
    if isinstance(method, str):
        values["method"] = method
    if isinstance(model, str):
        values["model"] = model
    if federation is not None and (clash := {"scenario", "data", "clients", "samples", "groups"} & set(values)):
        raise ConfigError(f"{sorted(clash)[0]} does not go with a federation: give one of the two")
    config = make_config(values)
    return start(
        config,
        out=Path(out) if out else None,
        callbacks=callbacks,
        federation=federation,
        model=None if isinstance(model, str) else model,
        method=None if isinstance(method, str) else method,
        loss=loss,
    )


def start(config: RunConfig, *, out: Path | None, callbacks: Sequence[Callback] = (), **objects: Any) -> Result:
    """Do a new run from a checked configuration, in a folder of its own if `out` is given."""
    prepared, used = assemble(config, **objects)
    try:
        if out is None:
            return execute(prepared, None, callbacks)
        with RunFolder.create(out, used) as folder:
            return execute(prepared, folder, callbacks)
    finally:
        prepared.engine.close()


def resume(
    path: str | Path,
    *,
    federation: Federation | None = None,
    model: Model | None = None,
    method: Method | None = None,
    loss: Loss | None = None,
    callbacks: Sequence[Callback] = (),
    **places: Any,
) -> Result:
    """Go on with a run after a kill, as if it had never stopped. Objects given to `run` must be given again."""
    unknown = set(places) - PLACE_KEYS
    if unknown:
        raise ConfigError(
            f"{sorted(unknown)[0]} cannot change when a run is resumed; only {', '.join(sorted(PLACE_KEYS))} can"
        )
    with RunFolder.open(Path(path)) as folder:
        stored = folder.config()
        values = stored_values(stored)
        if federation is not None:
            values["scenario"] = values["data"] = None
        if model is not None:
            values["model"] = None
        if method is not None:
            values["method"] = "fedavg"  # stands in for the object, which is what counts
        if federation is None and values.get("scenario") is None and values.get("data") is None:
            raise RunError(f"{path}: the run was made with a federation from Python: resume it with coterie.resume(…)")
        config = make_config(values | places, str(folder.path / "config.json"))
        prepared, used = assemble(config, federation=federation, model=model, method=method, loss=loss)
        try:
            check_same_run(used, stored, folder.path)
            return execute(prepared, folder, callbacks)
        finally:
            prepared.engine.close()


def new_folder(config: RunConfig, title: str | None = None, root: Path = Path("runs")) -> Path:
    """A folder under `root` that does not exist yet, named by time, method (or `title`) and scenario."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    method = title or config.method.partition(":")[0]
    where = config.scenario or (Path(config.data).name if config.data else DEFAULT_SCENARIO)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{stamp}-{method}-{where}")
    candidates = (root / (name if i == 1 else f"{name}-{i}") for i in itertools.count(1))
    return next(candidate for candidate in candidates if not candidate.exists())
