"""The configuration of a run: one flat table, from a TOML file, the command line or Python, checked in one place."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from coterie.errors import ConfigError, did_you_mean
from coterie.methods.aggregation import Aggregation
from coterie.methods.base import published_spec, published_table
from coterie.methods.options import parse_options
from coterie.methods.server_optimizer import ServerOptimizer
from coterie.metrics import check_name, listed
from coterie.option_types import takes, type_in_words
from coterie.options import (
    FIELDS,
    GROUPS,
    MOST_CLIENTS,
    PLACE_KEYS,
    DataOptions,
    WrittenOptions,
    option_annotation,
)
from coterie.runs.stopping import Limits
from coterie.trainers.augment import find_augment, own_function, spelt
from coterie.trainers.base import Training
from coterie.trainers.devices import choose_device
from coterie.trainers.losses import find_loss
from coterie.trainers.schedules import make_schedule

LIST_KEYS = frozenset({"drop", "categorical", "class_weights", "metrics"})
"""Keys whose value may be a list."""
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
SIZE = re.compile(r"(\d+\.?\d*|\.\d+)\s*((?:[KMG]I?)?)B")
"""A number of bytes with its unit."""


class RunConfig(BaseModel, WrittenOptions):
    """Everything that defines a run: the options of all groups. None means: the scenario's default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def block_column(self) -> str | None:
        """The column of tables whose values are held out as a whole."""
        return self.validation.partition(":")[2] if isinstance(self.validation, str) else None

    @property
    def validates(self) -> bool:
        """Whether clients are also evaluated on validation data."""
        return self.validation is not None or self.patience is not None

    @property
    def memory_bytes(self) -> int | None:
        """The memory to keep within, in bytes."""
        return None if self.memory is None else size_in_bytes("memory", self.memory)

    def identity(self) -> dict[str, Any]:
        """The part of the configuration that decides what is computed; `as_published` is part of the method by then."""
        return {key: value for key, value in self.model_dump().items() if key not in PLACE_KEYS | {"as_published"}}

    def aggregation(self, clients: int) -> Aggregation:
        """How the updates of this number of clients become one."""
        if self.dp_noise:
            return Aggregation(longest=self.dp_clip)
        return Aggregation.parse(
            self.aggregate,
            self.clip,
            self.weight_cap,
            expect_hostile=self.expect_hostile,
            clients=clients,
            seed=self.seed,
        )

    def limits(self) -> Limits:
        """What ends the run early."""
        most = None if self.max_bytes is None else size_in_bytes("max_bytes", self.max_bytes)
        return Limits(self.patience, self.monitor or "loss", self.max_seconds, most, self.max_passes)

    def training(self, default: Training) -> Training:
        """Local training: what was given, else the scenario's default."""
        name, betas, eps = parse_optimizer(self.optimizer)
        keys = ("lr", "epochs", "steps", "batch_size", "momentum", "weight_decay")
        given = {key: getattr(self, key) for key in keys if getattr(self, key) is not None}
        if "epochs" in given:
            given.setdefault("steps", None)
        if self.batch_size == "full":
            given["batch_size"] = None
        return replace(
            _usual_training(name, default),
            **given,
            optimizer="sgd" if name == "momentum" else name,
            betas=betas,
            eps=eps,
            keep_optimizer=self.keep_optimizer,
            clip_gradient=self.clip_gradient,
            class_weights=None if self.class_weights is None else parse_class_weights(self.class_weights),
            augment=self.augment,
        )


def _usual_training(optimizer: str, default: Training) -> Training:
    """Local training with an optimiser where nothing else is given."""
    if optimizer == "momentum":
        return replace(default, momentum=MOMENTUM)
    if optimizer in ("adam", "adamw"):
        decay = ADAMW_DECAY if optimizer == "adamw" else default.weight_decay
        return replace(default, lr=ADAM_LR, momentum=0.0, weight_decay=decay)
    return default


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
SOURCE_KEYS = frozenset(option.name for option in fields(DataOptions)) - {"data_dir"}
"""Keys that say which federation is made."""
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
    return type_in_words(option_annotation(key))


def ungrouped(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their flat names: every group that is given as an object or a table taken apart."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        for key, part in _parts(name, value).items():
            if key in found:
                raise ConfigError(f"{key} is given twice, in {name} and outside of it: give it once")
            found[key] = part
    return found


def _parts(name: str, value: Any) -> dict[str, Any]:
    """The options in a group's value: what an object sets, or what a table holds; another value stands for itself."""
    group = GROUPS.get(name)
    if group is None:
        return {name: value}
    if isinstance(value, group):
        return _set_in(value)
    if isinstance(value, Mapping):
        _check_table(name, value)
        return dict(value)
    if name in FIELDS:
        return {name: value}
    if value is not None:
        raise ConfigError(f"{name}={value!r}: expected coterie.{group.__name__}(…), or a table")
    return {}


def _check_table(name: str, table: Mapping[str, Any]) -> None:
    """Refuse a key that a group does not have."""
    known = [option.name for option in fields(GROUPS[name])]
    for key in table:
        if key not in known:
            raise ConfigError(f"unknown option {key!r} in {name}: {did_you_mean(key, known)}")


def _set_in(group: Any) -> dict[str, Any]:
    """The options that a group's object sets: those that differ from the default."""
    found = {}
    for option in fields(group):
        value, default = getattr(group, option.name), option.default
        if value is not default and (default is None or value != default):
            found[option.name] = value
    return found


def _as_text(key: str, value: Any) -> Any:
    """A value as a configuration holds it: paths, lists and functions as text."""
    if key == "augment":
        return spelt(value)
    if key in LIST_KEYS and isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        return ",".join(map(str, value)) or None
    return str(value) if isinstance(value, Path) else value


def flat_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options and groups as a configuration holds them: by their flat names, with text for objects."""
    return {key: _as_text(key, value) for key, value in ungrouped(values).items()}


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
    """A checked configuration of options and groups; an unknown key or a bad value is one line with a suggestion.

    Args:
        values: what is given; a table that the method names by `as` gives the rest (see `with_published`).
        origin: the file that they are from, for messages.
        own_federation: whether a federation is given as an object.
    """
    try:
        return _checked(with_published(flat_values(values), own_federation))
    except ConfigError as problem:
        raise ConfigError(f"{origin}: {problem}" if origin else str(problem)) from problem.__cause__


def _checked(flat: dict[str, Any]) -> RunConfig:
    for key, value in flat.items():
        _check_value(key, value)
    try:
        config = RunConfig(**flat)
    except ValidationError as problem:
        key = str(problem.errors()[0]["loc"][0])
        raise ConfigError(f"{key}={flat[key]!r}: expected {option_type(key)}") from problem
    for check in (_check_data, _check_engine, _check_limits, _check_aggregation, _check_training):
        check(config)
    return config


def _check_value(key: str, value: Any) -> None:
    """Refuse an unknown key, true and false in place of a number, and empty text."""
    if key not in FIELDS:
        raise ConfigError(f"unknown option {key!r}: {did_you_mean(key, FIELDS)}")
    if not takes(value, option_annotation(key)):
        raise ConfigError(f"{key}={value!r}: expected {option_type(key)}")
    if isinstance(value, str) and not value.strip():
        raise ConfigError(f"{key}={value!r}: expected {option_type(key)}, not empty: leave {key} out")


def _check_engine(config: RunConfig) -> None:
    """Refuse a device or an address that the engine does not have, and a size that is none."""
    if config.ray_address is not None and config.engine != "ray":
        raise ConfigError(f"ray_address={config.ray_address!r} goes with engine='ray', not {config.engine!r}")
    choose_device(config.device)
    if config.engine == "ray" and config.device not in ("auto", "cpu"):
        raise ConfigError(f"device={config.device!r} goes with engine='local': on Ray clients compute on processors")
    if config.memory is not None:
        size_in_bytes("memory", config.memory)


def _check_limits(config: RunConfig) -> None:
    """Refuse unknown metrics, and a monitor that nothing watches."""
    config.limits()
    for name in listed(config.metrics):
        check_name(name)
    if config.monitor is not None and config.patience is None:
        raise ConfigError(f"monitor={config.monitor!r} goes with patience: give that too")


def _check_aggregation(config: RunConfig) -> None:
    """Refuse a rule that needs single updates where no single update is seen."""
    config.aggregation(MOST_CLIENTS)
    asked = "aggregate" if config.expect_hostile is None else "expect_hostile"
    if getattr(config, asked) != "mean" and (config.secure_sums or config.dp_noise):
        why = "secure_sums shows no single update to compare" if config.secure_sums else "the ε of dp_noise is of means"
        raise ConfigError(f"{asked}={getattr(config, asked)!r}: {why}, leave one of the two out")
    if config.secure_sums and config.engine != "local":
        raise ConfigError("secure_sums is for engine='local', a simulation: other engines cannot do it yet")


def _check_training(config: RunConfig) -> None:
    """Refuse what does not go together in local training, and what is misspelt, before any data is touched."""
    training = config.training(Training())
    ServerOptimizer.parse(config.server_optimizer)
    if config.loss is not None and ":" not in config.loss:
        find_loss(config.loss)
    if config.augment is not None and not own_function(config.augment):
        find_augment(config.augment)
    if training.optimizer != "sgd" and config.momentum:
        raise ConfigError(f"momentum={config.momentum} goes with optimizer='momentum': Adam has its own, beta1")
    if config.keep_optimizer and not training.moments:
        raise ConfigError("keep_optimizer: plain SGD has no state to keep, choose another optimizer")
    make_schedule(config.lr_schedule, Training(), 1)


def _check_data(config: RunConfig) -> None:
    """Refuse two sources of data, and options that are for tables, images or data where there are none."""
    if config.scenario and config.data:
        raise ConfigError(f"scenario={config.scenario!r} and data={config.data!r}: give one of the two")
    given, of_table, of_images = (_given(config, keys) for keys in (DATA_KEYS, TABLE_KEYS, IMAGE_KEYS))
    if given and config.data is None:
        raise ConfigError(f"{given[0]}={getattr(config, given[0])!r} goes with data: name your data too")
    if of_table and of_images:
        raise ConfigError(f"{of_table[0]} is for tables and {of_images[0]} for images: give one of the two")
    if config.label is None:
        _check_unlabelled(config, of_table)


def _given(config: RunConfig, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if getattr(config, key) is not None]


def _check_unlabelled(config: RunConfig, of_table: list[str]) -> None:
    """Refuse options of tables where no label says that the data are tables."""
    if config.block_column is not None:
        raise ConfigError(
            f"validation={config.validation!r} names a column of tables: give their data and label too; other "
            "data, and nodes, keep the blocks whole that they have with validation=0.2"
        )
    if of_table:
        raise ConfigError(f"{of_table[0]} goes with tables, which need label: give the column to predict")


def read_config_file(path: Path) -> dict[str, Any]:
    """The options in a TOML file, checked: flat keys, tables of groups, and `[method]` with `name` and options."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except OSError as problem:
        raise ConfigError(f"{path}: cannot be read ({problem.strerror})") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise ConfigError(f"{path}: not valid TOML ({problem})") from problem
    if isinstance(method := table.get("method"), dict):
        table["method"] = _method_text(method, path)
    make_config(table, str(path))
    return flat_values(table)


def _method_text(method: dict[str, Any], path: Path) -> str:
    """The method that a table of its name and options means, as text."""
    if not isinstance(method.get("name"), str):
        raise ConfigError(f"{path}: the table [method] needs a key 'name' that is text")
    options = ",".join(f"{key}={value!r}" for key, value in method.items() if key != "name")
    return f"{method['name']}:{options}" if options else str(method["name"])


def size_in_bytes(name: str, text: str | int) -> int:
    """Bytes in a size such as 8GB, 512MB or 2GiB; `max_bytes` may also be a plain number."""
    if isinstance(text, int) or (name == "max_bytes" and text.strip().isdecimal()):
        return int(text)
    found = SIZE.fullmatch(text.strip().upper())
    size = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not 0 < size < math.inf:
        raise ConfigError(f"{name}={text!r}: expected a size such as 8GB or 512MB")
    return int(size)
