"""The methods of the board: who is on it, what each may try in its tuning, and a third party's method by its class."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import data_folder
from coterie.errors import ConfigError
from coterie.methods import Groups, Method, make_method
from coterie_board.federations import BoardFederation

TRIALS = 6
"""Runs that every method has for its tuning, on every federation."""
LEAST_RATE, MOST_RATE = 0.5, 8.0
"""Step sizes are tried from and to these, times the federation's, which is meant for more rounds."""
FINE_TUNED = "personalise=5"
"""A variant that is no option of the method but of the run: clients fine-tune for five epochs at the end."""
VARIANTS: dict[str, tuple[str, str]] = {
    "fedbabu": ("", FINE_TUNED),
    "fedprox": ("mu=0.01", "mu=0.1"),
    "ditto": ("lam=0.1", "lam=1"),
    "ifca": ("k=2", "k=4"),
    "clove": ("k=2", "k=4"),
    "oneshot": ("k=2", "k=4"),
    "fedem": ("components=2", "components=4"),
    "fedrc": ("components=2", "components=4"),
    "fedsoft": ("clusters=2", "clusters=4"),
    "fedsem": ("clusters=2", "clusters=4"),
    "flhc": ("clusters=2", "clusters=4"),
}
"""The second thing a method may tune; it then tries half as many step sizes, so that all have TRIALS trials."""
METHODS = (
    "fedavg", "local", "fedprox", "fedper", "fedbabu", "ditto",
    "cfl", "ifca", "fedcuau", "flt", "flhc", "clove", "pacfl", "fedsem", "oneshot",
    "fedem", "fedrc", "fedsoft", "feddrift", "pca-kmeans-hc", "groups",
)  # fmt: skip
REFERENCE = "fedavg"
"""Its bytes make the budget of all, and the others are tested against it."""


@dataclass(frozen=True)
class Trial:
    """What a method may be run with."""

    options: str
    """Options of the method as text, "" for its defaults."""
    rate: float
    """Step size over the scenario's."""


def grid(method: str) -> list[Trial]:
    """The trials of a method's tuning, always as many; a method given with options keeps these and tunes its step."""
    variants = VARIANTS.get(method, ("",))
    rates = np.geomspace(LEAST_RATE, MOST_RATE, TRIALS // len(variants))
    return [Trial(options, round(float(rate), 3)) for options in variants for rate in rates]


def is_class_path(method: str) -> bool:
    """Whether this is `package.module:Class`, not `name:key=value`."""
    module, colon, rest = method.partition(":")
    return bool(colon) and rest.isidentifier() and all(part.isidentifier() for part in module.split("."))


def row_name(method: str) -> str:
    """The name of a method's row."""
    return str(getattr(_class(method), "name", method.partition(":")[2])) if is_class_path(method) else method


def _class(path: str) -> Any:
    module, _, name = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as with `python -m`: a module of the folder one stands in
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(
            f"method {path!r}: cannot be imported ({problem}): expected package.module:Class"
        ) from problem


def check_method(method: str) -> None:
    """ConfigError where there is no such method."""
    if is_class_path(method):
        made = _class(method)()
        if not all(callable(getattr(made, name, None)) for name in ("start", "round", "assignment")):
            raise ConfigError(f"method {method!r}: expected a class with start, round and assignment (docs/methods.md)")
    elif method != "groups":
        for options in VARIANTS.get(method, ("",)):
            make_method(with_options(method, options))


def with_options(method: str, options: str) -> str:
    """The method as text with the options of a trial."""
    return f"{method}:{options}" if options and options != FINE_TUNED else method


def build(method: str, options: str, federation: BoardFederation, data_dir: str | None) -> str | Method:
    """What `coterie.run` is given; `groups` takes the federation's declared metadata."""
    if is_class_path(method):
        made: Method = _class(method)()
        return made
    if method == "groups":
        known = federation.declared
        if known is None:
            raise ConfigError(f"{federation.name} declares nothing of its clients that groups could be made by")
        file = Path(data_folder(data_dir)) / known.file
        return Groups(file=str(file), column=known.column, client_column=known.client_column)
    return with_options(method, options)


def takes_part(method: str, federation: BoardFederation) -> bool:
    """Whether a method has what it needs there: `groups` needs declared metadata."""
    return method != "groups" or federation.declared is not None
