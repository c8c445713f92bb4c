"""Start and resume runs: what `coterie.run` and `coterie.resume` do, and the command with them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from coterie import options as groups
from coterie.errors import ConfigError, RunError, did_you_mean
from coterie.federation import Federation
from coterie.federation.table_sites import tables_name
from coterie.methods import Method
from coterie.methods.base import find_method
from coterie.metrics import MetricFunction, listed, split_own
from coterie.models import list_models
from coterie.options import DEFAULT_SCENARIO, LIMIT_KEYS, PLACE_KEYS
from coterie.runs.assemble import Model, assemble, check_same_run, stored_values
from coterie.runs.callbacks import Callback, followed
from coterie.runs.config import DATA_KEYS, SOURCE_KEYS, RunConfig, make_config, ungrouped
from coterie.runs.folder import RunFolder
from coterie.runs.loop import execute
from coterie.runs.result import Result
from coterie.trainers.losses import LOSSES

RESUME_KEYS = PLACE_KEYS - {"out", "quiet"} | LIMIT_KEYS
"""Options that may differ when a run is resumed."""


def run(
    method: str | Method = "fedavg",
    federation: Federation | None = None,
    model: Model | None = None,
    *,
    as_published: bool = False,
    data: groups.DataOptions | str | Path | None = None,
    training: groups.TrainingOptions | None = None,
    limits: groups.LimitOptions | None = None,
    aggregation: groups.AggregationOptions | None = None,
    evaluation: groups.EvaluationOptions | None = None,
    privacy: groups.PrivacyOptions | Literal["none", "permutation", "signed-permutation", "projection"] = "none",
    engine: groups.EngineOptions | Literal["local", "ray"] = "local",
    seed: int = 0,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    **options: Any,
) -> Result:
    """Train a method on a federation and return clusters, models, history and summary.

    Options of training, limits and so on are given in groups, as in `training=TrainingOptions(lr=0.1)`, or by
    themselves, as in `lr=0.1`; each is explained under its group.

    Args:
        method: a method's name with its options, as in "ifca:k=4", or an object such as `IFCA(k=4)`.
        federation: the clients. Without it a scenario or a folder of data is named.
        as_published: compute what the method's paper prints, as "METHOD:as=paper" does; a method without a paper is as
            it is. "METHOD:as=TABLE" also takes the hyper-parameters that a table of the paper was made with, where none
            are given here: see `coterie methods METHOD`.
        model: a known name such as "mlp:hidden=64", an `nn.Module`, or a callable that makes one; by default the
            scenario's.
        data: your own data, or a scenario and its sizes; a text is short for `DataOptions(data=…)`.
        training: what a client does in a round.
        limits: the rounds, and what ends the run earlier; by default the scenario's number of rounds.
        aggregation: who takes part in a round, and how updates become one.
        evaluation: what models are evaluated by, on which data and how often.
        privacy: what is kept from the server; a text is short for `PrivacyOptions(privacy=…)`.
        engine: where clients compute; a text is short for `EngineOptions(engine=…)`.
        seed: seed of every random draw.
        out: a new folder for the results. A run with a folder can be resumed; without one nothing is written.
        callbacks: objects that follow the run (see `Callback`) and may stop it.
        progress: print a line that follows the run: True or False; by default on a terminal and in a notebook.
        options: options of the groups by themselves.

    Returns:
        The finished run.

    Raises:
        CallbackError: a callback failed; the error's `result` is what was reached.
        ConfigError: an option is out of range or does not go with another one. Options of the method are checked
            before any data is touched.
        DataError: data is missing, damaged, or cannot make the federation that was asked for.
        RunError: the folder `out` is in use or holds another run, or training diverged.

    Example:
        >>> import coterie
        >>> result = coterie.run("ifca:k=2", scenario="digits-rotated", clients=8, groups=2, rounds=10, seed=1)
        >>> [len(members) for members in result.clusters]
        [4, 4]
        >>> model = result.model_of("client-3")  # a torch module, ready to evaluate
    """
    grouped = {
        "data": data,
        "training": training,
        "limits": limits,
        "aggregation": aggregation,
        "evaluation": evaluation,
        "privacy": privacy,
        "engine": engine,
    }
    given = ungrouped(grouped | options)
    clash = sorted(key for key in SOURCE_KEYS if given.get(key) is not None)
    if federation is not None and clash:
        raise ConfigError(f"{clash[0]} does not go with a federation: give one of the two")
    metric_names, own_metrics = split_own(given.get("metrics"))
    loss = given.get("loss")
    named = {
        "method": method if isinstance(method, str) else "fedavg",  # stands in for an object, which is what counts
        "as_published": as_published,
        "model": _as_name(model),
        "loss": _as_name(loss),
        "metrics": metric_names,
        "seed": seed,
        "out": out,
    }
    return start(
        make_config(given | named, own_federation=federation is not None),
        out=Path(out) if out else None,
        callbacks=followed(callbacks, progress),
        federation=federation,
        model=_as_object(model),
        method=_as_object(method),
        loss=_as_object(loss),
        metrics=own_metrics,
    )


def _as_name(given: Any) -> str | None:
    """What was given by name."""
    return given if isinstance(given, str) else None


def _as_object(given: Any) -> Any:
    """What was given as an object of Python."""
    return None if isinstance(given, str) else given


def start(config: RunConfig, *, out: Path | None, callbacks: Sequence[Callback] = (), **objects: Any) -> Result:
    """Do a new run from a checked configuration, in a folder of its own if `out` is given.

    The `objects` are what `assemble` takes in place of what the configuration would name.
    """
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
    engine: groups.EngineOptions | Literal["local", "ray"] = "local",
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    **options: Any,
) -> Result:
    """Resume a run after a kill, as if it had never stopped; a finished one is returned as it is.

    What a run computes cannot change. Where and how fast it runs can, and is given again. A run that a callback or a
    limit stopped goes on from its last round, unless the limit still holds.

    Args:
        path: the run's folder.
        federation: the federation that was given to `run` in Python, if one was.
        model: the module or callable that was given to `run`, if one was.
        method: the method that was given to `run` as an object, if its class is not known by name.
        engine: where clients compute, as in `run`.
        callbacks: objects that follow the run, as in `run`.
        progress: print a line that follows the run, as in `run`.
        options: `loss` and `metrics`, the functions that were given to `run`, if any were; options of the engine by
            themselves; `data_dir`; and other limits than the run was begun with: `max_seconds`, `max_bytes`,
            `max_passes`.

    Returns:
        The finished run.

    Raises:
        CallbackError: a callback failed, as in `run`.
        ConfigError: an option is out of range or does not go with another one.
        RunError: the folder holds no run, is in use, or was begun with another federation, model, method or loss.

    Example:
        >>> import tempfile
        >>> import coterie
        >>> folder = tempfile.TemporaryDirectory()
        >>> first = coterie.run("cfl", scenario="digits-iid", clients=4, rounds=2, out=f"{folder.name}/run")
        >>> coterie.resume(f"{folder.name}/run").clusters == first.clusters
        True
        >>> folder.cleanup()
    """
    with RunFolder.open(Path(path)) as folder:
        stored = folder.config()
        loss = _as_object(options.pop("loss", None))
        own_metrics = split_own(options.pop("metrics", None))[1]
        objects: dict[str, Any] = {"federation": federation, "model": model, "method": method, "loss": loss}
        _check_given(Path(path), stored, objects, own_metrics)
        values = stored_values(stored) | _replaced(objects) | _places(engine, options)
        config = make_config(values, str(folder.path / "config.json"))
        prepared, used = assemble(config, **objects, metrics=own_metrics)
        try:
            held = {key: stored.get(key) for key in LIMIT_KEYS | {"published"}}
            check_same_run(used | held, stored, folder.path)
            return execute(prepared, folder, followed(callbacks, progress))
        finally:
            prepared.engine.close()


def _replaced(objects: Mapping[str, object]) -> dict[str, Any]:
    """What the configuration has in place of objects that are given again."""
    found: dict[str, Any] = {key: None for key in ("model", "loss") if objects[key] is not None}
    if objects["federation"] is not None:
        found |= dict.fromkeys(("scenario", "data", *DATA_KEYS))
    if objects["method"] is not None:
        found["method"] = "fedavg"  # stands in for the object, which is what counts
    return found


def _places(engine: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that may differ when a run is resumed; ConfigError for any other."""
    given = {key: value for key, value in ungrouped({"engine": engine, **options}).items() if value is not None}
    for key in given:
        if key not in RESUME_KEYS:
            raise ConfigError(f"unknown option {key!r} of resume: {did_you_mean(key, RESUME_KEYS)}")
    return given


def _check_given(
    path: Path, stored: Mapping[str, Any], objects: Mapping[str, object], own_metrics: Mapping[str, MetricFunction]
) -> None:
    """RunError that names every object which the run was given in Python and which must be given again."""
    missing = {name: text for name, text in _objects_of(stored).items() if objects[name] is None}
    if names := [name for name in listed(stored.get("own_metrics")) if name not in own_metrics]:
        missing["metrics"] = f"a function for each of {', '.join(names)}, by name"
    if missing:
        call = ", ".join([repr(str(path)), *(f"{name}=…" for name in missing)])
        what = "; ".join(f"{name}: {text}" for name, text in missing.items())
        raise RunError(
            f"{path}: the run was given objects in Python, which a folder does not hold: resume it in Python with "
            f"coterie.resume({call}), the same as were given to coterie.run ({what})"
        )


def _objects_of(stored: Mapping[str, Any]) -> dict[str, str]:
    """The objects of Python that a run was begun with, and what they are called."""
    found = {}
    if stored.get("scenario") is None and stored.get("data") is None:
        found["federation"] = "the clients"
    if not known_model(str(stored.get("model"))):
        found["model"] = str(stored.get("model"))
    if not _known_method(str(stored.get("method"))):
        found["method"] = str(stored.get("method"))
    loss = stored.get("loss")
    if not (loss is None or ":" in loss or loss in LOSSES):
        found["loss"] = str(loss)
    return found


def known_model(name: str) -> bool:
    """Whether a model can be made from its name alone."""
    first, colon, rest = name.partition(":")
    return first in {spec.name for spec in list_models()} or (bool(colon) and "=" not in rest)


def _known_method(name: str) -> bool:
    try:
        find_method(name.partition(":")[0])
    except ConfigError:
        return False
    return True


def new_folder(config: RunConfig, title: str | None = None, root: Path = Path("runs")) -> Path:
    """A folder under `root` that does not exist yet, named by time, method (or `title`) and scenario."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    method = title or config.method.partition(":")[0]
    where = config.scenario or (tables_name(config.data) if config.data else DEFAULT_SCENARIO)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{stamp}-{method}-{where}")
    candidates = (root / (name if i == 1 else f"{name}-{i}") for i in itertools.count(1))
    return next(candidate for candidate in candidates if not candidate.exists())
