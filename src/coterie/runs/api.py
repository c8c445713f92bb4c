"""Start and resume runs: what `coterie.run` and `coterie.resume` do, and the command with them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from coterie.errors import ConfigError, RunError
from coterie.federation import Federation
from coterie.federation.table_files import tables_name
from coterie.methods import Method
from coterie.methods.base import find_method
from coterie.metrics import MetricFunction, Metrics, listed, split_own
from coterie.models import list_models
from coterie.runs.assemble import Model, assemble, check_same_run, stored_values
from coterie.runs.callbacks import Callback
from coterie.runs.config import DATA_KEYS, DEFAULT_SCENARIO, LIMIT_KEYS, RunConfig, make_config
from coterie.runs.folder import RunFolder
from coterie.runs.loop import execute
from coterie.runs.progress import followed
from coterie.runs.result import Result
from coterie.trainers.augment import spelt
from coterie.trainers.base import Augment
from coterie.trainers.losses import LOSSES, Loss


def run(
    method: str | Method = "fedavg",
    federation: Federation | None = None,
    *,
    as_published: bool = False,
    model: Model | None = None,
    loss: str | Loss | None = None,
    scenario: str | None = None,
    data: str | Path | None = None,
    label: str | None = None,
    client_column: str | None = None,
    drop: str | Sequence[str] | None = None,
    categorical: str | Sequence[str] | None = None,
    decimal: Literal[".", ","] | None = None,
    task: Literal["classification", "regression"] | None = None,
    image_size: int | None = None,
    image_colour: Literal["grey", "colour"] | None = None,
    clients: int | None = None,
    samples: int | None = None,
    groups: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    participation: float | None = None,
    lr: float | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | Literal["full"] | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    optimizer: str = "sgd",
    keep_optimizer: bool = False,
    clip_gradient: float | None = None,
    class_weights: str | Sequence[float] | None = None,
    augment: str | Augment | None = None,
    server_optimizer: str = "none",
    lr_schedule: str | None = None,
    evaluate_every: int | Literal["auto"] = "auto",
    personalise: int | None = None,
    metrics: Metrics | None = None,
    validation: float | str | None = None,
    patience: int | None = None,
    monitor: str | None = None,
    max_seconds: float | None = None,
    max_bytes: int | str | None = None,
    max_passes: float | None = None,
    precision: Literal["float32", "float64", "bf16"] = "float32",
    privacy: Literal["none", "permutation", "signed-permutation", "projection"] = "none",
    aggregate: str = "mean",
    clip: str = "none",
    weight_cap: float = 0.0,
    secure_sums: bool = False,
    secure_limit: float = 1.0,
    secure_minimum: int = 3,
    dp_noise: float = 0.0,
    dp_clip: float = 1.0,
    dp_delta: float = 1e-5,
    workers: int | Literal["auto"] = "auto",
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    device: str = "auto",
    memory: str | None = None,
    data_dir: str | Path | None = None,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Result:
    """Train a method on a federation and return clusters, models, history and summary.

    Args:
        method: a method's name with its options, as in "ifca:k=4", or an object such as `IFCA(k=4)`.
        federation: the clients. Without it a scenario or a folder of data is named.
        as_published: compute what the method's paper prints, as "METHOD:as=paper" does; a method without a paper is as
            it is. "METHOD:as=TABLE" also takes the hyper-parameters that a table of the paper was made with, where none
            are given here: see `coterie methods METHOD`.
        model: a known name such as "mlp:hidden=64", an `nn.Module`, or a callable that makes one; by default the
            scenario's.
        loss: "cross-entropy", "bce", "mse", "mae", "huber", "module:function", or a function of outputs and targets; by
            default cross-entropy, or the squared error for regression. With "bce" a model has one output.
        scenario: the name of a federation, as `coterie scenarios` lists them; by default "digits-permuted".
        data: your own data instead of a scenario: a folder with one file per client (see `Federation.from_folder`),
            tables such as "sites/*.csv" (see `Federation.from_tables`), or a folder of images (see
            `Federation.from_images`).
        label: the column of the tables that is to be predicted.
        client_column: the column of one table that names the client of each row.
        drop: columns of the tables to leave out.
        categorical: columns of numbers that are categories.
        decimal: the decimal mark of the tables' numbers, "." by default.
        task: "classification" or "regression", where the data does not show whether labels are classes or quantities.
        image_size: side in pixels that images are resized to.
        image_colour: channels of images: "grey" (one) or "colour" (three).
        clients: number of clients of the scenario.
        samples: training samples per client of the scenario.
        groups: number of hidden groups of the scenario.
        rounds: communication rounds; by default the scenario's number, as with all of training below.
        seed: seed of every random draw.
        participation: fraction of the clients that take part in a round, above 0 and up to 1, by default 1.
        lr: step size of local training.
        epochs: local passes over the data in a round.
        steps: local SGD steps in a round, instead of epochs.
        batch_size: samples per step, or "full" for all of a client's.
        momentum: momentum of local training, from 0 and below 1.
        weight_decay: weight decay of local training; with "adamw" 0.01 where it is not given.
        optimizer: the clients' optimiser: "sgd", "momentum", "adam" or "adamw", with options as in "adam:beta2=0.99".
            Where `lr` is not given, Adam's is 0.001.
        keep_optimizer: let clients keep their optimiser's state between rounds; else every round begins anew.
        clip_gradient: the norm that the gradient of every local step is cut to.
        class_weights: the weight of each class in the local loss, or "balanced": by each client's own labels.
        augment: random changes to the images of a local step: "flip", "crop:4", "flip,crop:4", or a function of images
            and a generator, by itself or as "module:function".
        server_optimizer: what the server makes of a cluster's mean update: "none", "avgm", "adam" or "yogi", with
            options as in "adam:lr=0.1,tau=0.001".
        lr_schedule: how `lr` changes over the rounds: "constant", "step:…", "decay:…" or "exponential:…"; by
            default "constant".
        evaluate_every: rounds between two evaluations of all clients, or "auto": a round's participants in every
            round, and all clients as rarely as a client takes part.
        personalise: local epochs for which every client fine-tunes its model at the end; by default 0, none.
        metrics: what to evaluate by beside loss and accuracy: names such as "auc,f1" or ["auc", "f1"] (all are in
            `coterie.metrics.METRICS`), functions of outputs and labels, or functions by name.
        validation: fraction of every client's training data that is held out as validation data, whole blocks where
            the data has them; of tables also "blocks:COLUMN", to divide them by whole values of a column.
        patience: rounds without a better `monitor` on validation data after which the run stops; the models of the
            best round are the result's.
        monitor: the metric that `patience` watches; by default the loss.
        max_seconds: seconds after which the run stops, at the end of a round.
        max_bytes: bytes sent, up and down, after which the run stops at the end of a round: a number, or "500MB".
        max_passes: passes of a client over its training data, summed over the clients, after which the run stops at the
            end of a round; a look without a gradient is a third of one.
        precision: arithmetic of the clients.
        privacy: what the clients' secret is used for: nothing, a permutation of every vector before the server sees
            it, or a projection of the updates that CFL compares.
        aggregate: how a cluster's updates become one: "mean", "median", "trimmed-mean:0.2", "multi-krum:0.2" or
            "geometric-median".
        clip: the longest update: "3x" (times the median norm in its cluster), a number such as "1.5", or "none".
        weight_cap: the most samples that count for a client, times the median number; 0: no limit.
        secure_sums: form sums under masks that cancel, so that no single update is seen.
        secure_limit: the largest number of an update in a secure sum; larger ones are cut.
        secure_minimum: clients below which a cluster's secure sum is not opened.
        dp_noise: standard deviation of the noise of user-level differential privacy, over `dp_clip`; 0: none. With
            `secure_sums` the clients add it themselves, and nobody sees a sum without it.
        dp_clip: length that updates are cut to under `dp_noise`.
        dp_delta: the δ at which the run's ε is reported.
        workers: worker processes; "auto" starts one per core when there is enough work.
        engine: where clients run, on this machine or on Ray.
        ray_address: the Ray cluster to join; by default RAY_ADDRESS, else one that is started here.
        device: where clients compute: "auto", "cpu", "cuda" or "cuda:N".
        memory: memory to keep within, such as "8GB"; the rest of a data folder stays on disk.
        data_dir: folder with the data sets; by default COTERIE_DATA, else ~/.cache/coterie.
        out: a new folder for the results. A run with a folder can be resumed; without one nothing is written.
        callbacks: objects that follow the run (see `Callback`) and may stop it.
        progress: print a line that follows the run: True or False; by default on a terminal and in a notebook.

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
    named = {
        "scenario": scenario,
        "data": data,
        "label": label,
        "client_column": client_column,
        "drop": _as_names(drop),
        "categorical": _as_names(categorical),
        "decimal": decimal,
        "task": task,
        "image_size": image_size,
        "image_colour": image_colour,
        "clients": clients,
        "samples": samples,
        "groups": groups,
    }
    if federation is not None and (clash := sorted(key for key, value in named.items() if value is not None)):
        raise ConfigError(f"{clash[0]} does not go with a federation: give one of the two")
    names, own_metrics = split_own(metrics)
    values = {
        **named,
        "method": method if isinstance(method, str) else "fedavg",  # stands in for an object, which is what counts
        "as_published": as_published,
        "model": model if isinstance(model, str) else None,
        "data": _as_text(data),
        "rounds": rounds,
        "seed": seed,
        "participation": participation,
        "lr": lr,
        "epochs": epochs,
        "steps": steps,
        "batch_size": batch_size,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "loss": loss if isinstance(loss, str) else None,
        "optimizer": optimizer,
        "keep_optimizer": keep_optimizer,
        "clip_gradient": clip_gradient,
        "class_weights": _weights_text(class_weights),
        "augment": spelt(augment),
        "server_optimizer": server_optimizer,
        "lr_schedule": lr_schedule,
        "evaluate_every": evaluate_every,
        "personalise": personalise,
        "metrics": names,
        "validation": validation,
        "patience": patience,
        "monitor": monitor,
        "max_seconds": max_seconds,
        "max_bytes": max_bytes,
        "max_passes": max_passes,
        "precision": precision,
        "privacy": privacy,
        "aggregate": aggregate,
        "clip": clip,
        "weight_cap": weight_cap,
        "secure_sums": secure_sums,
        "secure_limit": secure_limit,
        "secure_minimum": secure_minimum,
        "dp_noise": dp_noise,
        "dp_clip": dp_clip,
        "dp_delta": dp_delta,
        "workers": workers,
        "engine": engine,
        "ray_address": ray_address,
        "device": device,
        "memory": memory,
        "data_dir": _as_text(data_dir),
        "out": _as_text(out),
    }
    given = {key: value for key, value in values.items() if value is not None}
    return start(
        make_config(given, own_federation=federation is not None),
        out=Path(out) if out else None,
        callbacks=followed(callbacks, progress),
        federation=federation,
        model=None if isinstance(model, str) else model,
        method=None if isinstance(method, str) else method,
        loss=None if isinstance(loss, str) else loss,
        metrics=own_metrics,
    )


def start(
    config: RunConfig,
    *,
    out: Path | None,
    callbacks: Sequence[Callback] = (),
    federation: Federation | None = None,
    model: Model | None = None,
    method: Method | None = None,
    loss: Loss | None = None,
    metrics: Mapping[str, MetricFunction] | None = None,
) -> Result:
    """Do a new run from a checked configuration, in a folder of its own if `out` is given."""
    prepared, used = assemble(config, federation=federation, model=model, method=method, loss=loss, metrics=metrics)
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
    metrics: Metrics | None = None,
    max_seconds: float | None = None,
    max_bytes: int | str | None = None,
    max_passes: float | None = None,
    workers: int | Literal["auto"] = "auto",
    engine: Literal["local", "ray"] = "local",
    ray_address: str | None = None,
    device: str = "auto",
    memory: str | None = None,
    data_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Result:
    """Resume a run after a kill, as if it had never stopped; a finished one is returned as it is.

    What a run computes cannot change. Where and how fast it runs can, and is given again. A run that a callback or a
    limit stopped goes on from its last round, unless the limit still holds.

    Args:
        path: the run's folder.
        federation: the federation that was given to `run` in Python, if one was.
        model: the module or callable that was given to `run`, if one was.
        method: the method that was given to `run` as an object, if its class is not known by name.
        loss: the loss that was given to `run`, if one was.
        metrics: the functions among the metrics that were given to `run`, by name or in a list.
        max_seconds: another limit of time than the run was begun with.
        max_bytes: another limit of bytes than the run was begun with.
        max_passes: another limit of passes than the run was begun with.
        workers: worker processes, as in `run`.
        engine: where clients run, as in `run`.
        ray_address: the Ray cluster to join, as in `run`.
        device: where clients compute, as in `run`.
        memory: memory to keep within, as in `run`.
        data_dir: folder with the data sets, as in `run`.
        callbacks: objects that follow the run, as in `run`.
        progress: print a line that follows the run, as in `run`.

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
        own_metrics = split_own(metrics)[1]
        _check_given(Path(path), stored, federation, model, method, loss, own_metrics)
        values = stored_values(stored)
        if loss is not None:
            values["loss"] = None
        if federation is not None:
            values.update(dict.fromkeys(("scenario", "data", *DATA_KEYS)))
        if model is not None:
            values["model"] = None
        if method is not None:
            values["method"] = "fedavg"  # stands in for the object, which is what counts
        limits = {"max_seconds": max_seconds, "max_bytes": max_bytes, "max_passes": max_passes}
        values |= {key: value for key, value in limits.items() if value is not None}
        places = {
            "workers": workers,
            "engine": engine,
            "ray_address": ray_address,
            "device": device,
            "memory": memory,
            "data_dir": _as_text(data_dir),
        }
        config = make_config(values | places, str(folder.path / "config.json"))
        prepared, used = assemble(
            config, federation=federation, model=model, method=method, loss=loss, metrics=own_metrics
        )
        try:
            held = {key: stored.get(key) for key in LIMIT_KEYS | {"published"}}
            check_same_run(used | held, stored, folder.path)
            return execute(prepared, folder, followed(callbacks, progress))
        finally:
            prepared.engine.close()


def _as_names(columns: str | Sequence[str] | None) -> str | None:
    return columns if columns is None or isinstance(columns, str) else ",".join(columns) or None


def _weights_text(weights: str | Sequence[float] | None) -> str | None:
    return weights if weights is None or isinstance(weights, str) else ",".join(repr(float(w)) for w in weights)


def _check_given(
    path: Path,
    stored: Mapping[str, Any],
    federation: Federation | None,
    model: Model | None,
    method: Method | None,
    loss: Loss | None,
    own_metrics: Mapping[str, MetricFunction],
) -> None:
    """RunError that names every object which the run was given in Python and which must be given again."""
    missing = {}
    if federation is None and stored.get("scenario") is None and stored.get("data") is None:
        missing["federation"] = "the clients"
    if model is None and not _known_model(str(stored.get("model"))):
        missing["model"] = f"{stored.get('model')}"
    if method is None and not _known_method(str(stored.get("method"))):
        missing["method"] = f"{stored.get('method')}"
    if loss is None and stored.get("loss") is not None and not _known_loss(str(stored["loss"])):
        missing["loss"] = f"{stored['loss']}"
    if names := [name for name in listed(stored.get("own_metrics")) if name not in own_metrics]:
        missing["metrics"] = f"a function for each of {', '.join(names)}, by name"
    if missing:
        call = ", ".join([repr(str(path)), *(f"{name}=…" for name in missing)])
        what = "; ".join(f"{name}: {text}" for name, text in missing.items())
        raise RunError(
            f"{path}: the run was given objects in Python, which a folder does not hold: resume it in Python with "
            f"coterie.resume({call}), the same as were given to coterie.run ({what})"
        )


def _known_model(name: str) -> bool:
    """Whether a model can be made from its name alone."""
    first, colon, rest = name.partition(":")
    return first in {spec.name for spec in list_models()} or (bool(colon) and "=" not in rest)


def _known_method(name: str) -> bool:
    try:
        find_method(name.partition(":")[0])
    except ConfigError:
        return False
    return True


def _known_loss(name: str) -> bool:
    """Whether a loss can be found by its name alone."""
    return ":" in name or name in LOSSES


def _as_text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)


def new_folder(config: RunConfig, title: str | None = None, root: Path = Path("runs")) -> Path:
    """A folder under `root` that does not exist yet, named by time, method (or `title`) and scenario."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    method = title or config.method.partition(":")[0]
    where = config.scenario or (tables_name(config.data) if config.data else DEFAULT_SCENARIO)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{stamp}-{method}-{where}")
    candidates = (root / (name if i == 1 else f"{name}-{i}") for i in itertools.count(1))
    return next(candidate for candidate in candidates if not candidate.exists())
