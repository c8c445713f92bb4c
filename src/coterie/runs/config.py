"""The configuration of a run: one flat table, from a TOML file, the command line or Python, checked in one place."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coterie.errors import ConfigError, did_you_mean
from coterie.methods.aggregation import Aggregation
from coterie.methods.base import published_spec, published_table
from coterie.methods.option_types import Placeholder, takes, type_in_words, union_members, value_in_words
from coterie.methods.options import parse_options
from coterie.methods.server_optimizer import ServerOptimizer
from coterie.metrics import check_name, listed
from coterie.runs.stopping import Limits
from coterie.trainers.augment import find_augment, own_function
from coterie.trainers.base import Training
from coterie.trainers.devices import choose_device
from coterie.trainers.losses import find_loss
from coterie.trainers.schedules import make_schedule

DEFAULT_SCENARIO = "digits-permuted"
"""The federation of a run that names none."""
UNSET = {
    "scenario": DEFAULT_SCENARIO,
    "data": "none",
    "label": "none",
    "client_column": "none: every file is a client",
    "drop": "none",
    "categorical": "those that hold texts",
    "decimal": ".",
    "task": "as the labels show",
    "image_size": "as they are",
    "image_colour": "colour if any image has it",
    "ray_address": "RAY_ADDRESS, else one started here",
    "memory": "no limit",
    "data_dir": "COTERIE_DATA, else ~/.cache/coterie",
    "out": "a new one under runs/",
    "loss": "cross-entropy for labels, mse for real targets",
    "lr": "the scenario's; with Adam 0.001",
    "weight_decay": "the scenario's; with adamw 0.01",
    "momentum": "the scenario's; with optimizer=momentum 0.9",
    "clip_gradient": "none",
    "class_weights": "none",
    "augment": "none",
    "metrics": "none",
    "validation": "what the data comes with",
    "patience": "all rounds",
    "monitor": "loss",
    "max_seconds": "no limit",
    "max_bytes": "no limit",
    "max_passes": "no limit",
}
"""What is used where one of these is not given; any other that is None is the scenario's."""
PLACE_KEYS = frozenset({"out", "data_dir", "workers", "quiet", "memory", "engine", "ray_address", "device"})
"""Keys that say where and how fast a run runs, not what it computes: they may differ when a run is resumed."""
LIMIT_KEYS = frozenset({"max_seconds", "max_bytes", "max_passes"})
"""Keys that are kept with a run, and may be given anew when it is resumed."""


MOST_CLIENTS, MOST_SAMPLES, MOST_WORKERS, MOST_PIXELS = 10**7, 10**9, 1024, 10**4
MOST_ROUNDS, MOST_STEPS = 10**9, 10**6
"""More than these is a slip of the finger, which would be busy for hours before it failed."""

Address = Annotated[str, Placeholder("ADDRESS")]
AggregateText = Annotated[str, Placeholder("RULE")]
BlocksText = Annotated[str, Placeholder("blocks:COLUMN"), Field(pattern="^blocks:.")]
ClipText = Annotated[str, Placeholder("LENGTH")]
ColumnName = Annotated[str, Placeholder("COLUMN")]
ColumnNames = Annotated[str, Placeholder("COLUMNS")]
Data = Annotated[str, Placeholder("DATA")]
Device = Annotated[str, Placeholder("DEVICE")]
Folder = Annotated[str, Placeholder("FOLDER")]
MethodText = Annotated[str, Placeholder("METHOD")]
MetricNames = Annotated[str, Placeholder("METRICS")]
ModelText = Annotated[str, Placeholder("MODEL")]
AugmentText = Annotated[str, Placeholder("CHANGES")]
LossText = Annotated[str, Placeholder("LOSS")]
OptimizerText = Annotated[str, Placeholder("OPTIMIZER")]
WeightsText = Annotated[str, Placeholder("WEIGHTS")]
Name = Annotated[str, Placeholder("NAME")]
ScheduleText = Annotated[str, Placeholder("SCHEDULE")]
Size = Annotated[str, Placeholder("SIZE")]


class RunConfig(BaseModel):
    """Everything that defines a run. None means: the scenario's default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: MethodText = Field("fedavg", description="method, with options as name:key=value,key=value")
    as_published: bool = Field(
        False, description="the method as its paper prints it, as METHOD:as=paper does; one without a paper as it is"
    )
    scenario: Name | None = Field(None, description="named federation (see 'coterie scenarios')")
    data: Data | None = Field(
        None,
        description="your own data instead of a scenario: folder with one .npz file (or .x.npy and .y.npy) per client, "
        "tables such as 'sites/*.csv', or a folder of images, CLIENT/CLASS/*.png",
    )
    label: ColumnName | None = Field(None, description="column of the tables that is to be predicted")
    client_column: ColumnName | None = Field(None, description="column of one table that names the client of each row")
    drop: ColumnNames | None = Field(None, description="columns of the tables to leave out, as NAME,NAME")
    categorical: ColumnNames | None = Field(None, description="columns of numbers that are categories, as NAME,NAME")
    decimal: Literal[".", ","] | None = Field(None, description="decimal mark of the tables' numbers")
    task: Literal["classification", "regression"] | None = Field(
        None, description="whether labels are classes or quantities, where the data does not show it"
    )
    image_size: int | None = Field(None, ge=1, le=MOST_PIXELS, description="side in pixels that images are resized to")
    image_colour: Literal["grey", "colour"] | None = Field(None, description="channels of images, one or three")
    clients: int | None = Field(None, ge=1, le=MOST_CLIENTS, description="number of clients")
    samples: int | None = Field(None, ge=1, le=MOST_SAMPLES, description="training samples per client")
    groups: int | None = Field(None, ge=1, le=MOST_CLIENTS, description="number of hidden groups")
    model: ModelText | None = Field(None, description="network: a known name with options, or module:callable")
    rounds: int | None = Field(None, ge=1, le=MOST_ROUNDS, description="communication rounds")
    seed: int = Field(0, ge=0, description="seed of every random draw")
    participation: float = Field(1.0, gt=0, le=1, description="fraction of the clients that take part in a round")
    lr: float | None = Field(None, gt=0, description="step size of local training")
    epochs: int | None = Field(None, ge=1, le=MOST_STEPS, description="local passes over the data in a round")
    steps: int | None = Field(None, ge=1, le=MOST_STEPS, description="local SGD steps in a round, instead of epochs")
    batch_size: Annotated[int, Field(ge=1)] | Literal["full"] | None = Field(
        None, description="samples per step, or all of a client's"
    )
    momentum: float | None = Field(None, ge=0, lt=1, description="momentum of local training")
    weight_decay: float | None = Field(None, ge=0, description="weight decay of local training")
    loss: LossText | None = Field(
        None, description="loss: cross-entropy, bce, mse, mae, huber, or module:function of outputs and targets"
    )
    optimizer: OptimizerText = Field(
        "sgd",
        description="the clients' optimiser: sgd, momentum, adam or adamw, with options as adam:beta2=0.99,eps=1e-6",
    )
    keep_optimizer: bool = Field(False, description="let clients keep their optimiser's state between rounds")
    clip_gradient: float | None = Field(None, gt=0, description="norm that the gradient of every local step is cut to")
    class_weights: WeightsText | None = Field(
        None, description="weight of each class in the local loss: balanced, or numbers such as 1,5"
    )
    augment: AugmentText | None = Field(
        None,
        description="random changes to the images of a step: flip, crop:4, both as flip,crop:4, or module:function",
    )
    server_optimizer: OptimizerText = Field(
        "none", description="the server's optimiser, per cluster: none, avgm, adam or yogi, with options as adam:lr=0.1"
    )
    lr_schedule: ScheduleText = Field(
        "constant", description="how lr changes over the rounds: constant, step:…, decay:… or exponential:…"
    )
    evaluate_every: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="rounds between two evaluations of all clients; auto: a round's participants, and all clients as "
        "rarely as a client takes part",
    )
    personalise: int = Field(
        0,
        ge=0,
        le=MOST_STEPS,
        description="local epochs for which each client fine-tunes its model at the end; 0: none",
    )
    metrics: MetricNames | None = Field(
        None, description="what to evaluate by beside loss and accuracy, such as auc,f1 (see docs/guide/metrics.md)"
    )
    validation: Annotated[float, Field(gt=0, lt=1)] | BlocksText | None = Field(
        None,
        description="fraction of every client's training data that is held out as validation data; of tables also "
        "blocks:COLUMN, to divide them by whole values of a column such as a day or a patient",
    )
    patience: int | None = Field(
        None, ge=1, description="stop after so many rounds without progress on validation data; the best models stay"
    )
    monitor: Name | None = Field(None, description="the metric that patience watches")
    max_seconds: float | None = Field(None, gt=0, description="stop after the round in which so much time has passed")
    max_bytes: Annotated[int, Field(ge=1)] | Size | None = Field(
        None, description="stop after the round in which so much has been sent, up and down, e.g. 500MB"
    )
    max_passes: float | None = Field(
        None, gt=0, description="stop after the round in which clients have passed over their data that often in sum"
    )
    precision: Literal["float32", "float64", "bf16"] = Field("float32", description="arithmetic of the clients")
    privacy: Literal["none", "permutation", "signed-permutation", "projection"] = Field(
        "none",
        description="what the clients' secret is used for: nothing, a permutation of every vector, or a projection of "
        "the updates that are compared",
    )
    aggregate: AggregateText = Field(
        "mean",
        description="mean, median, trimmed-mean:0.2, multi-krum:0.2 or geometric-median of the updates",
    )
    clip: ClipText = Field("none", description="longest update: 3x (times its cluster's median norm), a number, none")
    weight_cap: float = Field(
        0.0, ge=0, description="most samples that count for a client, times the median number (0: no limit)"
    )
    secure_sums: bool = Field(False, description="form sums under masks, so that no single update is seen")
    secure_limit: float = Field(1.0, gt=0, description="largest number of an update in a secure sum; larger are cut")
    secure_minimum: int = Field(3, ge=2, description="clients below which a cluster's secure sum is not opened")
    dp_noise: float = Field(0.0, ge=0, description="user-level differential privacy: noise over dp_clip; 0: none")
    dp_clip: float = Field(1.0, gt=0, description="length that updates are cut to under dp_noise")
    dp_delta: float = Field(1e-5, gt=0, lt=1, description="the δ at which the run's ε is reported")
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | Literal["auto"] = Field(
        "auto", description="worker processes"
    )
    engine: Literal["local", "ray"] = Field("local", description="where clients run: on this machine, or on Ray")
    ray_address: Address | None = Field(None, description="Ray cluster to join")
    device: Device = Field("auto", description="where clients compute: auto, cpu, cuda or cuda:N")
    memory: Size | None = Field(
        None, description="memory to keep within, e.g. 8GB; the rest of a data folder stays on disk"
    )
    data_dir: Folder | None = Field(None, description="folder with the data sets")
    out: Folder | None = Field(None, description="folder for the results")
    quiet: bool = Field(False, description="print nothing but errors")

    @property
    def block_column(self) -> str | None:
        """The column of tables whose values are held out as a whole."""
        return self.validation.partition(":")[2] if isinstance(self.validation, str) else None

    def identity(self) -> dict[str, Any]:
        """The part of the configuration that decides what is computed; `as_published` is part of the method by then."""
        return {key: value for key, value in self.model_dump().items() if key not in PLACE_KEYS | {"as_published"}}

    def aggregation(self) -> Aggregation:
        """How updates become one."""
        if self.dp_noise:
            return Aggregation(longest=self.dp_clip)
        return Aggregation.parse(self.aggregate, self.clip, self.weight_cap)

    def limits(self) -> Limits:
        """What ends the run early."""
        most = None if self.max_bytes is None else size_in_bytes("max_bytes", self.max_bytes)
        return Limits(self.patience, self.monitor or "loss", self.max_seconds, most, self.max_passes)

    def training(self, default: Training) -> Training:
        """Local training: what was given, else the scenario's default."""
        batch_size = None if self.batch_size == "full" else (self.batch_size or default.batch_size)
        name, betas, eps = parse_optimizer(self.optimizer)
        usual = default if name in ("sgd", "momentum") else replace(default, lr=ADAM_LR, momentum=0.0)
        if name == "momentum":
            usual = replace(usual, momentum=MOMENTUM)
        if name == "adamw":
            usual = replace(usual, weight_decay=ADAMW_DECAY)
        return Training(
            lr=self.lr if self.lr is not None else usual.lr,
            epochs=self.epochs or default.epochs,
            steps=self.steps if self.steps or self.epochs else default.steps,
            batch_size=batch_size,
            momentum=self.momentum if self.momentum is not None else usual.momentum,
            weight_decay=self.weight_decay if self.weight_decay is not None else usual.weight_decay,
            optimizer="sgd" if name == "momentum" else name,
            betas=betas,
            eps=eps,
            keep_optimizer=self.keep_optimizer,
            clip_gradient=self.clip_gradient,
            class_weights=None if self.class_weights is None else parse_class_weights(self.class_weights),
            augment=self.augment,
        )


CLIENT_OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
ADAM_LR, ADAMW_DECAY, MOMENTUM = 0.001, 0.01, 0.9
"""What an optimiser uses where nothing is given: torch's own defaults, and the usual momentum."""


def parse_optimizer(spec: str) -> tuple[str, tuple[float, float], float]:
    """The name, betas and eps in a text such as "adam" or "adam:beta1=0.8,eps=1e-6"."""
    name, _, text = spec.partition(":")
    if name not in CLIENT_OPTIMIZERS:
        raise ConfigError(f"optimizer={spec!r}: {did_you_mean(name, CLIENT_OPTIMIZERS)}")
    known = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8} if name in ("adam", "adamw") else {}
    given = parse_options(text, spec)
    for key, value in given.items():
        if key not in known:
            raise ConfigError(
                f"optimizer={spec!r}: {name} has no option {key!r}: "
                f"{did_you_mean(key, known) if known else 'momentum and weight_decay are options of the run'}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise ConfigError(f"optimizer={spec!r}: {key}={value!r}, expected a number from 0 and below 1")
    found = known | given
    return name, (found.get("beta1", 0.9), found.get("beta2", 0.999)), found.get("eps", 1e-8)


def parse_class_weights(text: str) -> tuple[float, ...] | str:
    """The weights in a text such as "1,5", or "balanced"."""
    if text == "balanced":
        return text
    try:
        weights = tuple(float(part) for part in text.split(","))
    except ValueError:
        weights = ()
    if not weights or not all(0 < weight < math.inf for weight in weights):
        raise ConfigError(f"class_weights={text!r}: expected 'balanced', or a number above 0 for each class, as in 1,5")
    return weights


TABLE_KEYS = ("label", "client_column", "drop", "categorical", "decimal")
IMAGE_KEYS = ("image_size", "image_colour")
DATA_KEYS = (*TABLE_KEYS, *IMAGE_KEYS, "task")
"""Keys that say how `data` is read."""
EITHER_OR = ({"scenario", "data"}, {"steps", "epochs"})
"""Keys of which one takes the place of the other."""


def absolute_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with every path in full, the user's own files of code too: a run is resumed from any folder."""
    found = dict(values)
    for key in ("data", "model", "loss", "augment"):
        text = values.get(key)
        if isinstance(text, str) and (key == "data" or text.rpartition(":")[0].endswith(".py")):
            found[key] = str(Path(text).expanduser().absolute())
    return found


def overlay(table: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The table with what was given on top: a given key also removes the one whose place it takes."""
    replaced = {key for pair in EITHER_OR if pair & set(given) for key in pair}
    if "scenario" in given:
        replaced.update(DATA_KEYS)
    return {key: value for key, value in table.items() if key not in replaced} | dict(given)


def option_type(key: str) -> str:
    """What may be given for a key, in words: "whole number from 1", "one of local, ray"."""
    if key == "validation":  # the one key whose text has a form
        return "number above 0 and below 1 or blocks:COLUMN"
    return type_in_words(option_annotation(key), RunConfig.model_fields[key].metadata)


def option_annotation(key: str) -> Any:
    """The type of what may be given for a key; None, which stands for what is not given, is no part of it."""
    hint = _annotations()[key]
    return Union[tuple(part for part in union_members(hint) if part is not type(None))]  # noqa: UP007 (made here)


@cache
def _annotations() -> dict[str, Any]:
    """The types of all keys: evaluated once, because each evaluation reads all of them."""
    return get_type_hints(RunConfig, include_extras=True)


def option_default(key: str) -> str:
    """What is used where a key is not given, in words."""
    default = RunConfig.model_fields[key].default
    return UNSET.get(key, "the scenario's") if default is None else value_in_words(default)


def with_published(values: Mapping[str, Any], own_federation: bool = False) -> dict[str, Any]:
    """The values with the method as published where that is asked for, and its table's settings where none are given.

    A table's federation does not count beside a federation, data or a scenario that is given.
    """
    given = {key: value for key, value in values.items() if value is not None}
    method = given.get("method")
    if given.get("as_published") is True:
        method = given["method"] = published_spec(str(method or "fedavg"))
    named = published_table(method) if isinstance(method, str) else None
    if named is None:
        return dict(values) | given
    table = named[1]
    elsewhere = own_federation or "scenario" in given or "data" in given
    return overlay(dict(table.training) | ({} if elsewhere else dict(table.federation)), given)


def make_config(values: Mapping[str, Any], origin: str = "", *, own_federation: bool = False) -> RunConfig:
    """A checked configuration; an unknown key or a bad value is one line with a suggestion.

    Args:
        values: what is given; a table that the method names by `as` gives the rest (see `with_published`).
        origin: the file that they are from, for messages.
        own_federation: whether a federation is given as an object.
    """
    where = f"{origin}: " if origin else ""
    values = with_published(values, own_federation)
    for key in values:
        if key not in RunConfig.model_fields:
            raise ConfigError(f"{where}unknown option {key!r}: {did_you_mean(key, RunConfig.model_fields)}")
    for key, value in values.items():
        if not takes(value, RunConfig.model_fields[key].annotation):
            raise ConfigError(f"{where}{key}={value!r}: expected {option_type(key)}")
        if isinstance(value, str) and not value.strip():
            raise ConfigError(f"{where}{key}={value!r}: expected {option_type(key)}, not empty: leave {key} out")
    try:
        config = RunConfig(**values)
    except ValidationError as problem:
        key = str(problem.errors()[0]["loc"][0])
        raise ConfigError(f"{where}{key}={values[key]!r}: expected {option_type(key)}") from problem
    if config.scenario and config.data:
        raise ConfigError(f"{where}scenario={config.scenario!r} and data={config.data!r}: give one of the two")
    _check_data_options(config, where)
    if config.ray_address is not None and config.engine != "ray":
        raise ConfigError(f"{where}ray_address={config.ray_address!r} goes with engine='ray', not {config.engine!r}")
    choose_device(config.device)
    if config.engine == "ray" and config.device not in ("auto", "cpu"):
        raise ConfigError(
            f"{where}device={config.device!r} goes with engine='local': on Ray clients compute on processors"
        )
    if config.memory is not None:
        memory_bytes(config.memory)
    config.limits()
    for name in listed(config.metrics):
        check_name(name)
    if config.monitor is not None and config.patience is None:
        raise ConfigError(f"{where}monitor={config.monitor!r} goes with patience: give that too")
    config.aggregation()
    if config.aggregate != "mean" and (config.secure_sums or config.dp_noise):
        why = (
            "secure sums show no single update to weigh" if config.secure_sums else "its ε holds for clipped means only"
        )
        raise ConfigError(f"{where}aggregate={config.aggregate!r} does not go with this: {why}; use aggregate='mean'")
    if config.secure_sums and config.engine != "local":
        raise ConfigError(f"{where}secure_sums is for engine='local', a simulation: other engines cannot do it yet")
    _check_training(config, where)
    make_schedule(config.lr_schedule, Training(), 1)  # so that a misspelt one fails before any data is touched
    return config


def _check_training(config: RunConfig, where: str) -> None:
    """Refuse what does not go together in local training, and what is misspelt, before any data is touched."""
    training = config.training(Training())
    ServerOptimizer.parse(config.server_optimizer)
    if config.loss is not None and ":" not in config.loss:
        find_loss(config.loss)
    if config.augment is not None and not own_function(config.augment):
        find_augment(config.augment)
    if training.optimizer != "sgd" and config.momentum:
        raise ConfigError(f"{where}momentum={config.momentum} goes with optimizer='momentum': Adam has its own, beta1")
    if config.keep_optimizer and not training.moments:
        raise ConfigError(f"{where}keep_optimizer: plain SGD has no state to keep, choose another optimizer")


def _check_data_options(config: RunConfig, where: str) -> None:
    """Options of tables go with tables, those of images with images."""
    given = [key for key in DATA_KEYS if getattr(config, key) is not None]
    if given and config.data is None:
        raise ConfigError(f"{where}{given[0]}={getattr(config, given[0])!r} goes with data: name your data too")
    of_table = [key for key in given if key in TABLE_KEYS]
    of_images = [key for key in given if key in IMAGE_KEYS]
    if of_table and of_images:
        raise ConfigError(f"{where}{of_table[0]} is for tables and {of_images[0]} for images: give one of the two")
    if config.label is None and config.block_column is not None:
        raise ConfigError(
            f"{where}validation={config.validation!r} names a column of tables: give their data and label too; other "
            "data, and nodes, keep the blocks whole that they have with validation=0.2"
        )
    if config.label is None and of_table:
        raise ConfigError(f"{where}{of_table[0]} goes with tables, which need label: give the column to predict")


def read_config_file(path: Path) -> dict[str, Any]:
    """The table in a TOML file, its keys checked; `method` may be a table with `name` and options."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read ({problem.strerror})") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise ConfigError(f"{path}: not valid TOML ({problem})") from problem
    method = table.get("method")
    if isinstance(method, dict):
        if not isinstance(method.get("name"), str):
            raise ConfigError(f"{path}: the table [method] needs a key 'name' that is text")
        options = ",".join(f"{key}={value!r}" for key, value in method.items() if key != "name")
        table["method"] = method["name"] + (f":{options}" if options else "")
    if isinstance(weights := table.get("class_weights"), list):
        table["class_weights"] = ",".join(map(str, weights))
    if isinstance(table.get("metrics"), list):
        table["metrics"] = ",".join(map(str, table["metrics"]))
    make_config(table, str(path))
    return table


def memory_bytes(text: str) -> int:
    """Bytes in a size such as 8GB, 512MB or 2GiB."""
    return size_in_bytes("memory", text)


def size_in_bytes(name: str, text: str | int) -> int:
    """Bytes in a size such as 8GB, 512MB or 2GiB; `max_bytes` may also be a plain number."""
    if isinstance(text, int) or (name == "max_bytes" and text.strip().isdecimal()):
        return int(text)
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "B": 1}
    cleaned = text.strip().upper()
    for unit in sorted(units, key=len, reverse=True):
        if cleaned.endswith(unit):
            try:
                size = float(cleaned[: -len(unit)])
            except ValueError:
                break
            if 0 < size * units[unit] < math.inf:
                return int(size * units[unit])
    raise ConfigError(f"{name}={text!r}: expected a size such as 8GB or 512MB")
