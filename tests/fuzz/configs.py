"""Configuration files and command lines: keys that are and are not there, with values of every kind."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coterie.runs.config import RunConfig, make_config, read_config_file

from .harness import Finding, Trial, command
from .mutations import spoilt, value

KEYS = [*RunConfig.model_fields, "round", "learning_rate", "", "method.k"]
SMALL = ["--quiet", "--scenario=xor", "--clients=3", "--samples=6", "--rounds=1", "--workers=1", "--engine=local"]
SMALL += ["--device=cpu", "--epochs=1", "--batch-size=3", "--personalise=0", "--precision=float32"]
TEXTS = {
    "method": [
        "fedavg",
        "ifca:k=2",
        "cfl",
        "ifca:k=",
        "ifca:",
        ":",
        "fedavg:k=1",
        "local",
        "fedavg,cfl",
        "ifca:k=2,k=2",
    ],
    "model": ["mlp", "mlp:hidden=3", "logistic", "mlp:hidden=-1", "no", "os:getcwd", "sys:exit", ".:x", "a.py:b"],
    "lr_schedule": ["constant", "step:0.1@1", "decay:0.9", "step:", "decay:inf", "exponential:0", "step:1@-1", "x:1"],
    "loss": ["cross-entropy", "bce", "mse", "os:getcwd", "sys:exit", "huber:", ":", "no"],
    "optimizer": ["adam", "adamw:eps=1e-6", "momentum", "adam:eps=", "adam:beta1=1", "sgd:x=1", "adam:", "x"],
    "server_optimizer": ["avgm", "adam:lr=0.1", "yogi:tau=0", "adam:lr=inf", "avgm:momentum=1", "none:lr=1", "x"],
    "class_weights": ["balanced", "1,2", "1,nan", "-1", ",", "inf", "1,1,1,1,1,1,1,1,1,1"],
    "augment": ["flip", "crop:1", "flip,crop:2", "crop:", "crop:0", "flip:1", "os:getcwd", "sys:exit", ",", "x"],
    "memory": ["1GB", "1B", "-1GB", "nanGB", "infGB", "1e400MB", "GB"],
    "device": ["cpu", "cuda:x", "cuda:999", "tpu"],
}


class Configs:
    """A TOML file, sometimes spoilt, then the command on it."""

    name = "configs"

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[Trial]:
        """A folder for the runs."""
        numbers = itertools.count()

        def trial(random: random.Random) -> str:
            keys = random.sample(KEYS, random.randint(1, 4))
            table = {
                key: random.choice(TEXTS[key]) if key in TEXTS and random.random() < 0.8 else value(random)
                for key in keys
            }
            text = "".join(f"{key or '_'} = {written(entry)}\n" for key, entry in table.items()).encode(
                "utf-8", "replace"
            )
            file = folder / "config.toml"
            file.write_bytes(spoilt(text, random) if random.random() < 0.2 else text)
            _check_meant(read_config_file(file))
            return command("run", str(file), *SMALL, "--out", str(folder / f"run-{next(numbers)}"))

        yield trial


def _entry(key: str, random: random.Random) -> Any:
    return random.choice(TEXTS[key]) if key in TEXTS and random.random() < 0.8 else value(random)


def written(entry: Any) -> str:
    """The value as TOML."""
    if entry is None:
        return "none"
    if isinstance(entry, dict):
        return "{" + ", ".join(f"{key} = {written(inner)}" for key, inner in entry.items()) + "}"
    return json.dumps(entry) if isinstance(entry, str | bool | list) else repr(entry)


def _check_meant(table: dict[str, Any]) -> None:
    """What was accepted must be what was written."""
    config = make_config(table)
    for key, entry in table.items():
        used = getattr(config, key)
        if isinstance(entry, bool) != isinstance(used, bool) or (used != entry and str(used) != str(entry)):
            number = isinstance(entry, int | float) and isinstance(used, int | float) and float(entry) == float(used)
            text = isinstance(entry, str) and isinstance(used, int | float) and float(entry) == float(used)
            if not number and not text:
                raise Finding(f"{key} = {entry!r} was taken for {used!r}")
