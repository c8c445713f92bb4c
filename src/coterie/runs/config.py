"""The configuration of a run: one flat table, from a TOML file, the command line or Python, checked in one place."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.engines.devices import choose_device
from coterie.errors import ConfigError, did_you_mean
from coterie.schedules import make_schedule
from coterie.workbench import Training

PLACE_KEYS = frozenset({"out", "data_dir", "workers", "quiet", "memory", "engine", "ray_address", "device"})
"""Keys that say where and how fast a run runs, not what it computes: they may differ when a run is resumed."""


class RunConfig(BaseModel):
    """Everything that defines a run. None means: the scenario's default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: str = Field("fedavg", description="method, with options as name:key=value,key=value")
    scenario: str | None = Field(None, description="named federation (see 'coterie scenarios')")
    data: str | None = Field(
        None, description="folder with one .npz file (or .x.npy and .y.npy) a client, instead of a scenario"
    )
    clients: int | None = Field(None, ge=1, description="number of clients")
    samples: int | None = Field(None, ge=1, description="training samples a client")
    groups: int | None = Field(None, ge=1, description="number of hidden groups")
    model: str | None = Field(None, description="network: a known name with options, or module:callable")
    rounds: int | None = Field(None, ge=1, description="communication rounds")
    seed: int = Field(0, ge=0, description="seed of every random draw")
    participation: float = Field(1.0, gt=0, le=1, description="fraction of the clients that take part in a round")
    lr: float | None = Field(None, gt=0, description="step size of local training")
    epochs: int | None = Field(None, ge=1, description="local passes over the data in a round")
    steps: int | None = Field(None, ge=1, description="local SGD steps in a round, instead of epochs")
    batch_size: int | Literal["full"] | None = Field(None, description="samples in a step, or 'full'")
    momentum: float | None = Field(None, ge=0, lt=1, description="momentum of local training")
    weight_decay: float | None = Field(None, ge=0, description="weight decay of local training")
    lr_schedule: str = Field("constant", description="constant, step:…, decay:… or exponential:…")
    evaluate_every: int = Field(1, ge=1, description="rounds between two evaluations")
    personalise: int = Field(0, ge=0, description="local epochs of every client's own fine-tuning at the end (0: none)")
    precision: Literal["float32", "float64", "bf16"] = Field("float32", description="arithmetic of the clients")
    privacy: Literal["none", "permutation", "signed-permutation"] = Field(
        "none", description="turn every vector by a secret of the clients before the server sees it"
    )
    workers: int | Literal["auto"] = Field("auto", description="worker processes, or 'auto'")
    engine: Literal["local", "ray"] = Field("local", description="where clients run: on this machine, or on Ray")
    ray_address: str | None = Field(
        None, description="Ray cluster to join (default: RAY_ADDRESS, else one started here)"
    )
    device: str = Field("auto", description="where clients compute: auto, cpu, cuda or cuda:N")
    memory: str | None = Field(
        None, description="memory to keep within, e.g. 8GB; the rest of a data folder stays on disk"
    )
    data_dir: str | None = Field(None, description="where data sets lie (default: COTERIE_DATA)")
    out: str | None = Field(None, description="folder for the results (default: a new one under runs/)")
    quiet: bool = Field(False, description="print nothing but errors")

    def identity(self) -> dict[str, Any]:
        """The part of the configuration that decides what is computed."""
        return {key: value for key, value in self.model_dump().items() if key not in PLACE_KEYS}

    def training(self, default: Training) -> Training:
        """Local training: what was given, else the scenario's default."""
        batch_size = None if self.batch_size == "full" else (self.batch_size or default.batch_size)
        return Training(
            lr=self.lr if self.lr is not None else default.lr,
            epochs=self.epochs or default.epochs,
            steps=self.steps if self.steps or self.epochs else default.steps,
            batch_size=batch_size,
            momentum=self.momentum if self.momentum is not None else default.momentum,
            weight_decay=self.weight_decay if self.weight_decay is not None else default.weight_decay,
        )


EITHER_OR = ({"scenario", "data"}, {"steps", "epochs"})
"""Keys of which one takes the place of the other."""


def overlay(table: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The table with what was given on top: a given key also removes the one whose place it takes."""
    replaced = {key for pair in EITHER_OR if pair & set(given) for key in pair}
    return {key: value for key, value in table.items() if key not in replaced} | dict(given)


def make_config(values: Mapping[str, Any], origin: str = "") -> RunConfig:
    """A checked configuration; an unknown key or a bad value is one line with a suggestion."""
    where = f"{origin}: " if origin else ""
    for key in values:
        if key not in RunConfig.model_fields:
            raise ConfigError(f"{where}unknown option {key!r}: {did_you_mean(key, RunConfig.model_fields)}")
    try:
        config = RunConfig(**values)
    except ValidationError as problem:
        first = problem.errors()[0]
        raise ConfigError(f"{where}{first['loc'][0]}={first['input']!r}: {first['msg'].lower()}") from problem
    if isinstance(config.batch_size, int) and config.batch_size < 1:
        raise ConfigError(f"{where}batch_size={config.batch_size}: expected 1 or more, or 'full'")
    if isinstance(config.workers, int) and config.workers < 1:
        raise ConfigError(f"{where}workers={config.workers}: expected 1 or more, or 'auto'")
    if config.scenario and config.data:
        raise ConfigError(f"{where}scenario={config.scenario!r} and data={config.data!r}: give one of the two")
    if config.ray_address is not None and config.engine != "ray":
        raise ConfigError(f"{where}ray_address={config.ray_address!r} goes with engine='ray', not {config.engine!r}")
    choose_device(config.device)
    if config.engine == "ray" and config.device not in ("auto", "cpu"):
        raise ConfigError(
            f"{where}device={config.device!r} goes with engine='local': on Ray clients compute on processors"
        )
    if config.memory is not None:
        memory_bytes(config.memory)
    make_schedule(config.lr_schedule, Training(), 1)  # so that a misspelt one fails before any data is touched
    return config


def read_config_file(path: Path) -> dict[str, Any]:
    """The table in a TOML file, its keys checked; `method` may be a table with `name` and options."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read ({problem.strerror})") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path}: not valid TOML ({problem})") from problem
    method = table.get("method")
    if isinstance(method, dict):
        if not isinstance(method.get("name"), str):
            raise ConfigError(f"{path}: the table [method] needs a key 'name' that is text")
        options = ",".join(f"{key}={value!r}" for key, value in method.items() if key != "name")
        table["method"] = method["name"] + (f":{options}" if options else "")
    make_config(table, str(path))
    return table


def memory_bytes(text: str) -> int:
    """Bytes in a size such as 8GB, 512MB or 2GiB."""
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "B": 1}
    cleaned = text.strip().upper()
    for unit in sorted(units, key=len, reverse=True):
        if cleaned.endswith(unit):
            try:
                size = float(cleaned[: -len(unit)])
            except ValueError:
                break
            if size > 0:
                return int(size * units[unit])
    raise ConfigError(f"memory={text!r}: expected a size such as 8GB or 512MB")
