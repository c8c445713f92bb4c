"""Load a finished run from its folder: its result, with all that placing newcomers takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie import models
from coterie.errors import ConfigError, RunError
from coterie.federation.tables import Table
from coterie.methods import make_method
from coterie.parameters import Layout
from coterie.runs.assemble import Model, loss_of, make_placing, stored_values
from coterie.runs.config import RunConfig, make_config
from coterie.runs.folder import RunFolder
from coterie.runs.prepared import Placing
from coterie.runs.records import ClientRecord, History, Summary, model_file
from coterie.runs.result import Result
from coterie.runs.target_scaling import TargetScaling
from coterie.snapshot import load_tensors
from coterie.trainers.base import Training
from coterie.trainers.losses import Loss


def load(path: str | Path, *, model: Model | None = None, loss: Loss | None = None) -> Result:
    """Load a finished run from its folder, to predict, evaluate, export and place newcomers with it.

    Args:
        path: the run's folder.
        model: the module or the callable that the run was given in Python; not needed for a model known by name.
        loss: the loss that the run was given in Python, if one was.

    Returns:
        The result as `coterie.run` returned it.

    Raises:
        ConfigError: the model cannot be made here: give it again.
        RunError: the folder holds no finished run, or a file of it is damaged.

    Example:
        >>> import tempfile
        >>> import coterie
        >>> folder = tempfile.TemporaryDirectory()
        >>> run = coterie.run("fedavg", scenario="digits-iid", clients=4, rounds=2, out=f"{folder.name}/run")
        >>> coterie.load(f"{folder.name}/run").summary == run.summary
        True
        >>> folder.cleanup()
    """
    path = Path(path)
    folder = RunFolder(path)
    if not folder.has("config.json"):
        raise RunError(f"{path}: not a run folder (no config.json in it)")
    summary = folder.summary()
    if summary is None:
        raise RunError(f"{path}: the run is not finished: resume it with 'coterie resume {path}'")
    checkpoint = folder.checkpoint()
    if checkpoint is None:
        raise RunError(f"{path}: the run has no checkpoint yet: let it run for a few seconds")
    config = make_config(stored_values(folder.config()), str(path / "config.json"))
    shape = folder.read_json("model.json")
    table = Table.from_json(folder.read_json("table.json")) if folder.has("table.json") else None
    architecture = _architecture(shape, model)
    layout = Layout.of(architecture(0))
    clients = folder.clients()
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    kept = (path / "models").is_dir()  # they may have been removed
    names = _model_files(summary, clients) if kept else []
    has_private = kept and any(row.private and row.model for row in clients)
    private, layers = _private_layers(path) if has_private else ({}, ())
    return Result(
        summary=summary,
        history=History(folder.history()),
        clients=clients,
        state=checkpoint.state,
        layout=layout,
        architecture=architecture,
        path=path,
        files={name: _vector_in(path / "models" / f"{name}.safetensors", layout, dtype) for name in names},
        private=private,
        private_layers=layers,
        shape=shape,
        table=table,
        placing=_placing(config, architecture, loss, table),
    )


def _placing(
    config: RunConfig, architecture: Callable[[int], nn.Module], loss: Loss | None, table: Table | None
) -> Placing | None:
    """What newcomers are placed by, with the run's own loss, if any; None where its method is not known here."""
    training = config.training(Training())  # a stored config names every number
    scaling = TargetScaling.of(table)
    try:
        method = make_method(config.method)
        own = loss_of(config, loss)
    except ConfigError:
        return None
    return make_placing(method, config, architecture, training, config.rounds or 1, own, scaling)


def _model_files(summary: Summary, clients: Sequence[ClientRecord]) -> list[str]:
    """The names of the files with the clusters' models and with those that clients are served by."""
    served = [name for row in clients if row.model for name in (row.model, *row.mixture)]
    return list(dict.fromkeys([*map(model_file, summary.cluster_ids), *served]))


def _vector_in(path: Path, layout: Layout, dtype: torch.dtype) -> Tensor:
    """The vector `(d,)` in a file of `models/`."""
    vector = torch.empty(layout.size, dtype=dtype)
    tensors, _ = load_tensors(path)
    try:
        for entry in layout.entries:
            vector[entry.start : entry.stop] = tensors[entry.name].reshape(-1)
    except (KeyError, RuntimeError) as problem:
        raise RunError(f"{path}: holds another model than the run's ({problem})") from problem
    return vector


def _private_layers(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The clients' private layers in a run's folder, and their names."""
    tensors, about = load_tensors(path / "models" / "private.safetensors")
    return tensors, tuple(json.loads(about.get("layers", "[]")))


def _architecture(shape: dict[str, Any], model: Model | None) -> Callable[[int], nn.Module]:
    """The function that makes a run's modules, from what `model.json` says of the model; no data is needed."""
    outputs = shape.get("outputs", shape["classes"])
    dtype = getattr(torch, shape["dtype"])
    architecture = models.initialiser(model or shape["model"], tuple(shape["input_shape"]), outputs, dtype)
    try:
        architecture(0)
    except ConfigError as problem:
        raise ConfigError(
            f"the run's model {shape['model']!r} cannot be made here ({problem}): give it again, model=…"
        ) from problem
    return architecture
