"""Use a run from its folder: its result, its method's last state, the models on a client's path, and newcomers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie import models
from coterie.errors import ConfigError, RunError
from coterie.federation.tables import Table
from coterie.methods import Method, make_method
from coterie.models.ensemble import Ensemble
from coterie.parameters import Layout
from coterie.privacy import Mask
from coterie.runs.assemble import Model, clients_secret, loss_of, make_placing, stored_values
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
    folder = opened(path)
    summary = folder.summary()
    if summary is None:
        raise RunError(f"{path}: the run is not finished: resume it with 'coterie resume {path}'")
    run, clients = open_run(path, model), folder.clients()
    try:
        placing = run.placing(loss)
    except ConfigError:  # a method of one's own, whose class is not known here
        placing = None
    kept = (path / "models").is_dir()  # a run may be asked to keep no models
    has_private = kept and any(row.private and row.model for row in clients)
    private, layers = run.private_layers() if has_private else ({}, ())
    return Result(
        summary=summary,
        history=History(folder.history()),
        clients=clients,
        state=run.state,
        layout=run.layout,
        architecture=run.architecture,
        path=path,
        files={name: run.layout_vector(name) for name in _model_files(summary, clients)} if kept else {},
        private=private,
        private_layers=layers,
        shape=folder.read_json("model.json"),
        table=stored_table(folder),
        placing=placing,
    )


def _model_files(summary: Summary, clients: Sequence[ClientRecord]) -> list[str]:
    """The names of the files with the clusters' models and with those that clients are served by."""
    served = [name for row in clients if row.model for name in (row.model, *row.mixture)]
    return list(dict.fromkeys([*map(model_file, summary.cluster_ids), *served]))


@dataclass(frozen=True)
class StoredRun:
    """A run folder with what is needed to use its models: the architecture, the method and its last state."""

    folder: RunFolder
    config: RunConfig
    architecture: Callable[[int], nn.Module]
    regression: bool
    state: Any

    @property
    def layout(self) -> Layout:
        """The layout of the model's vectors."""
        return Layout.of(self.architecture(0))

    def method(self) -> Method:
        """The method with the run's options."""
        return make_method(self.config.method)

    def module(self, vector: Tensor) -> nn.Module:
        """A module with the parameters of a vector as the server holds it, in evaluation mode."""
        module = self.architecture(0)
        layout = Layout.of(module)
        if self.config.privacy in ("permutation", "signed-permutation"):
            signed = self.config.privacy == "signed-permutation"
            vector = Mask.from_secret(clients_secret(self.config.seed), layout, signed=signed).reveal(vector)
        layout.write(vector, module)
        return module.eval()

    def path_of(self, client: str) -> dict[int, nn.Module]:
        """The models on the way to a client's cluster by id, from the one for all to its own."""
        path = getattr(self.method(), "path", None)
        if path is None:
            raise ConfigError(f"method {self.config.method!r} has one model per cluster and no path of them")
        return {number: self.module(vector) for number, vector in path(self.state, client).items()}

    def ensemble(self, client: str) -> Ensemble:
        """One module that averages the predictions of all models on a client's path."""
        return Ensemble(list(self.path_of(client).values()), regression=self.regression)

    def placing(self, loss: Loss | None = None) -> Placing:
        """What newcomers are placed by, with the run's own loss, if it had one."""
        training = self.config.training(Training())  # a stored config names every number
        own = loss_of(self.config, loss)
        scaling, rounds = TargetScaling.of(stored_table(self.folder)), self.config.rounds or 1
        return make_placing(self.method(), self.config, self.architecture, training, rounds, own, scaling)

    def layout_vector(self, name: str) -> Tensor:
        """The vector `(d,)` in a file of `models/`."""
        path = self.folder.path / "models" / f"{name}.safetensors"
        layout = self.layout
        vector = torch.empty(layout.size, dtype=torch.float64 if self.config.precision == "float64" else torch.float32)
        tensors, _ = load_tensors(path)
        try:
            for entry in layout.entries:
                vector[entry.start : entry.stop] = tensors[entry.name].reshape(-1)
        except (KeyError, RuntimeError) as problem:
            raise RunError(f"{path}: holds another model than the run's ({problem})") from problem
        return vector

    def private_layers(self) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """The clients' private layers, and their names."""
        path = self.folder.path / "models" / "private.safetensors"
        tensors, about = load_tensors(path)
        return tensors, tuple(json.loads(about.get("layers", "[]")))


def open_run(path: str | Path, model: Model | None = None) -> StoredRun:
    """A run's folder, finished or not. `model` is needed where the run was given one from Python."""
    folder = opened(path)
    checkpoint = folder.checkpoint()
    if checkpoint is None:
        raise RunError(f"{path}: the run has no checkpoint yet: let it run for a few seconds")
    config = make_config(stored_values(folder.config()), str(folder.path / "config.json"))
    shape = folder.read_json("model.json")
    return StoredRun(folder, config, stored_architecture(shape, model), not shape["classes"], checkpoint.state)


def stored_table(folder: RunFolder) -> Table | None:
    """The preprocessing of a run on tables, or None."""
    return Table.from_json(folder.read_json("table.json")) if folder.has("table.json") else None


def opened(path: str | Path) -> RunFolder:
    """The folder of a run, only to be read; RunError for any other."""
    folder = RunFolder(Path(path))
    if not folder.has("config.json"):
        raise RunError(f"{path}: not a run folder (no config.json in it)")
    return folder


def stored_architecture(shape: dict[str, Any], model: Model | None = None) -> Callable[[int], nn.Module]:
    """The function that makes a run's modules, from what `model.json` says of the model; no data is needed."""
    if isinstance(model, nn.Module):
        module = model
        return lambda seed: models.reinitialise(module, seed)
    spec = model or shape["model"]
    dtype = getattr(torch, shape["dtype"])

    def architecture(seed: int) -> nn.Module:
        return models.build(spec, tuple(shape["input_shape"]), shape.get("outputs", shape["classes"]), seed, dtype)

    try:
        architecture(0)
    except ConfigError as problem:
        raise ConfigError(
            f"the run's model {spec!r} cannot be made here ({problem}): give it again, model=…"
        ) from problem
    return architecture
