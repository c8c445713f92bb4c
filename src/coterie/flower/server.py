"""A ready ServerApp: it waits for nodes, does a run of any method on them, and resumes where a killed one stopped.

The run's options are those of `coterie run`, read from Flower's run configuration (with hyphens or underscores; an
empty text leaves an option out). Some are for a network only: see `NetworkConfig`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.errors import ConfigError, RunError
from coterie.federation.tables import Table
from coterie.flower.certificates import key_in_hex, read_lines
from coterie.flower.client import defaults_of
from coterie.flower.directory import MOST_SAMPLES, Directory, Expected, is_number, stand_in
from coterie.flower.engine import TIMEOUT, FlowerEngine, SecureFlowerEngine
from coterie.flower.exchange import Exchange
from coterie.flower.tables import TableOptions, agree, collect_reports, spelt, table_record
from coterie.methods import Method, make_method
from coterie.metrics import MetricFunction
from coterie.privacy.client_keys import owner_from_line
from coterie.runs.assemble import Model, assemble, check_same_run
from coterie.runs.callbacks import Callback
from coterie.runs.config import RunConfig, make_config, overlay
from coterie.runs.folder import RunFolder
from coterie.runs.loop import execute
from coterie.runs.prepared import Run
from coterie.runs.result import Result

NETWORK = "flower.json"
"""The file of a run's folder that says how to resume it on another day."""


class NetworkConfig(BaseModel):
    """What a run on a network needs to know beside the run's own options."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    min_nodes: int = Field(2, ge=1, description="clients to wait for before the first round")
    min_replies: float = Field(0.5, ge=0, description="clients that must work: a fraction, or a number from 1 up")
    timeout: float = Field(TIMEOUT, gt=0, description="seconds that a client has for a task")
    wait: float = Field(TIMEOUT, gt=0, description="seconds to wait for the first clients")
    poll: float = Field(0.5, gt=0, description="seconds between two looks for answers")
    fold_bytes: int = Field(0, ge=0, description="bytes of arrays up to which they travel in one part")
    classes: int | None = Field(None, ge=1, description="number of labels (default: the most that two clients report)")
    input_shape: str | None = Field(None, description="shape of one input, such as 1,28,28 (default: what most have)")
    most_samples: int = Field(MOST_SAMPLES, ge=1, description="training samples that a client may claim")
    node_keys: bool = Field(False, description="nodes have keys of their own: an id is never given to another key")
    ids_per_node: int = Field(1, ge=1, description="different clients that one node may be in a run")
    client_keys: str | None = Field(
        None, description="JSON file with the public key of every client that may take part (default: any may)"
    )
    sums_clients: str | None = Field(
        None,
        description="JSON file with the key by which every client signs its part of secure sums (default: any may)",
    )
    label: str | None = Field(None, description="the column to predict, where nodes have tables")
    drop: str | None = Field(None, description="columns of the nodes' tables that are left out")
    categorical: str | None = Field(None, description="columns of the nodes' tables that are categories")
    decimal: str | None = Field(None, description="decimal mark of the nodes' tables (default: found in each)")
    task: Literal["classification", "regression"] | None = Field(None, description="what the label is")
    trial_groups: bool = Field(False, description="clients of a trial report their hidden groups, for the metrics")

    def expected(self, classes: int | None = None) -> Expected:
        """What clients must be; `classes` is what an earlier part of the run has settled."""
        try:
            shape = None if self.input_shape is None else tuple(int(n) for n in self.input_shape.split(","))
        except ValueError:
            raise ConfigError(f"input_shape={self.input_shape!r}: expected whole numbers, such as 1,28,28") from None
        keys = None if self.client_keys is None else read_keys(Path(self.client_keys))
        return Expected(classes or self.classes, shape, self.most_samples, keys, self.node_keys, self.ids_per_node)


def read_keys(path: Path) -> dict[str, str]:
    """The clients' public keys in an operator's list, in hexadecimal as a run's flower.json shows them."""
    return {client: key_in_hex(key) for client, key in read_lines(path).items()}


def server_app(
    config: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    *,
    model: Model | None = None,
    method: Method | None = None,
    callbacks: Sequence[Callback] = (),
    metrics: Mapping[str, MetricFunction] | None = None,
) -> ServerApp:
    """A ServerApp that does the run which `config` and Flower's run configuration (which comes first) describe.

    With `out` (or the option of that name) the run is kept in that folder, checkpointed after every round; if the
    folder holds an unfinished run, the app resumes it. `model` and `method` may be objects, as in `coterie.run`.
    `metrics` are functions of your own by name, which the clients must be given too.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        options = overlay(spelt(config or {}), spelt(context.run_config))
        run_on(grid, options, out, callbacks=callbacks, model=model, method=method, metrics=metrics)

    return app


def run_on(
    grid: Grid,
    options: Mapping[str, Any],
    out: str | Path | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    **objects: Any,
) -> Result:
    """Do a run on the clients behind a grid, or resume the one in the folder `out`.

    The `objects` are what `assemble` takes in place of what the configuration would name.
    """
    config, network = read_options(options)
    place = out or config.out
    path = Path(place) if place else None
    if not objects.get("method"):
        make_method(config.method)  # a misspelt one fails before anybody is waited for
    if path is None:
        run, _ = _prepare(grid, config, network, {}, **objects)
        return execute(_refreshed(run, None, {}), None, callbacks)
    if not (path / "config.json").exists():
        about = {"run": uuid.uuid4().hex}
        run, used = _prepare(grid, config, network, about, **objects)
        with RunFolder.create(path, used) as folder:
            return execute(_refreshed(run, folder, about), folder, callbacks)
    with RunFolder.open(path) as folder:
        if folder.has("summary.json"):
            raise RunError(f"{path}: this run is already complete: choose another out to run it again")
        about = folder.read_json(NETWORK) if folder.has(NETWORK) else {}
        run, used = _prepare(grid, config, network, about, **objects)
        check_same_run(used, folder.config(), path)
        return execute(_refreshed(run, folder, about), folder, callbacks)


def read_options(options: Mapping[str, Any]) -> tuple[RunConfig, NetworkConfig]:
    """The run's options and the network's, checked."""
    ours = {key: value for key, value in options.items() if key in NetworkConfig.model_fields}
    config = make_config({key: value for key, value in options.items() if key not in ours})
    if config.precision == "float64":
        raise ConfigError("precision='float64' does not go with Flower, where numbers travel as float32: use 'float32'")
    try:
        return config, NetworkConfig(**ours)
    except ValidationError as problem:
        first = problem.errors()[0]
        raise ConfigError(f"{first['loc'][0]}={first['input']!r}: {first['msg'].lower()}") from problem


def _prepare(
    grid: Grid, config: RunConfig, network: NetworkConfig, about: Mapping[str, Any], **objects: Any
) -> tuple[Run, dict[str, Any]]:
    """Wait for the clients and put the run together on them."""
    expected = network.expected(about.get("classes"))
    exchange = Exchange(grid, network.timeout, network.poll)
    table = agreed_table(exchange, config, network, about)
    question = None if table is None else table_record(table)
    directory = Directory(exchange, expected, about.get("keys"), question)
    directory.wait_for(network.min_nodes, network.wait)
    assert directory.kind is not None
    like = stand_in(directory.kind, directory.classes, config.scenario or "flower", table)
    kind: Callable[..., FlowerEngine] = FlowerEngine
    if config.secure_sums:
        listed = None if network.sums_clients is None else read_lines(Path(network.sums_clients))
        owners = None if listed is None else {client: owner_from_line(line) for client, line in listed.items()}
        kind = partial(SecureFlowerEngine, limit=config.secure_limit, minimum=config.secure_minimum, owners=owners)
    engine_for: Callable[..., FlowerEngine] = partial(
        kind,
        grid,
        directory=directory,
        min_replies=network.min_replies,
        privacy=config.privacy,
        run=about.get("run"),
        fold_bytes=network.fold_bytes,
    )
    defaults = defaults_of(config.scenario)
    run, used = assemble(config, federation=like, defaults=defaults, engine_for=engine_for, **objects)
    return replace(run, save_every_round=True, groups_now=directory.groups), used


def agreed_table(
    exchange: Exchange, config: RunConfig, network: NetworkConfig, about: Mapping[str, Any]
) -> Table | None:
    """The preprocessing of the nodes' tables: that of the run's earlier part, else from their reports."""
    options = TableOptions.of(network.model_dump() | {"seed": config.seed})
    if options is None:
        return None
    if "table" in about:
        return Table.from_json(about["table"])
    return agree(collect_reports(exchange, network.min_nodes, network.wait), options)


def _refreshed(run: Run, folder: RunFolder | None, about: Mapping[str, Any]) -> Run:
    """The run, which looks before every round which clients are there.

    Whose key is whose is kept in its folder, if it has one, so that no other takes an id over on resuming.
    """
    engine = run.engine
    assert isinstance(engine, FlowerEngine)
    directory, written = engine.directory, dict[str, Any]()

    def refresh(t: int) -> None:
        engine.refresh()
        keys = {client: key for client, key in directory.bound.items() if not is_number(key)}
        known = {**about, "classes": run.model_shape["classes"], "keys": keys}
        known |= {} if run.table is None else {"table": run.table.to_json()}
        if folder is not None and known != written:
            folder.write_json(NETWORK, known)
            written.update(known)

    return replace(run, before_round=refresh)
