"""The methods of the board: who is on it, what each may try in its tuning, and a third party's method by its class."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie import Federation
from coterie.data import data_folder
from coterie.errors import ConfigError
from coterie.methods import Groups, Method, make_method
from coterie_board.federations import BoardFederation

FINE_TUNED = "personalise=5"
"""A variant that is no option of the method but of the run: clients fine-tune for five epochs at the end."""
NUMBERS = (2, 3, 4, 6, 8)
"""Numbers of clusters that are tried, whatever the federation's groups."""


def _numbers(option: str, automatic: str | None = None) -> tuple[str, ...]:
    """The variants of a method that is told its number of clusters; first that which decides by itself, if any."""
    return (*(() if automatic is None else (automatic,)), *(f"{option}={k}" for k in NUMBERS))


VARIANTS: dict[str, tuple[str, ...]] = {
    "fedbabu": ("", FINE_TUNED),
    "fedprox": ("mu=0.01", "mu=0.1", "mu=1"),
    "ditto": ("lam=0.1", "lam=1"),
    "ifca": _numbers("k", "k=auto"),
    "clove": _numbers("k", "k=auto"),
    "flt": _numbers("clusters", ""),
    "pca-kmeans-hc": _numbers("clusters", ""),
    "pacfl": _numbers("clusters", ""),
    "oneshot": _numbers("k"),
    "flhc": _numbers("clusters"),
    "fedsem": _numbers("clusters"),
    "fedsoft": _numbers("clusters"),
    "fedem": _numbers("components"),
    "fedrc": _numbers("components"),
    "fedcuau": _numbers("clusters"),
}
"""What a method tunes beside its step size: its number of clusters, or its own main option."""
REFERENCE = "fedavg"
"""The others are tested against it."""
ORACLE = "groups"
"""One model for each of the groups that the data have, or for what is declared of the clients: in no ranking."""
TUNED_AT_THE_END = "fedavg-ft"
"""FedAvg whose clients fine-tune their model at the end."""
METHODS = (
    REFERENCE, TUNED_AT_THE_END, "local", "fedprox", "fedper", "fedbabu", "ditto",
    "auto", "cfl", "ifca", "fedcuau", "flt", "flhc", "clove", "pacfl", "fedsem", "oneshot",
    "fedem", "fedrc", "fedsoft", "feddrift", "pca-kmeans-hc", ORACLE,
)  # fmt: skip


def variants(method: str) -> tuple[str, ...]:
    """What a method may try beside its step size; one given with options keeps these."""
    return (FINE_TUNED,) if method == TUNED_AT_THE_END else VARIANTS.get(method, ("",))


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
    elif method != ORACLE:
        for options in variants(method):
            make_method(with_options(method, options))


def with_options(method: str, options: str) -> str:
    """The method as text with the options of a trial."""
    name = REFERENCE if method == TUNED_AT_THE_END else method
    return f"{name}:{options}" if options and options != FINE_TUNED else name


def build(
    method: str, options: str, entry: BoardFederation, federation: Federation, data_dir: str | None
) -> str | Method:
    """What `coterie.run` is given; the oracle takes what is declared of the clients, or their hidden groups."""
    if is_class_path(method):
        made: Method = _class(method)()
        return made
    if method != ORACLE:
        return with_options(method, options)
    if entry.declared is not None:
        known, file = entry.declared, Path(data_folder(data_dir)) / entry.declared.file
        return Groups(file=str(file), column=known.column, client_column=known.client_column)
    if federation.groups is None:
        raise ConfigError(f"{entry.name}: nothing is known of its clients that groups could be made by")
    return Groups(of={client: str(group) for client, group in zip(federation.ids, federation.groups, strict=True)})


def takes_part(method: str, entry: BoardFederation) -> bool:
    """Whether a method has what it needs there: known groups, or an accuracy in the end that fine-tuning can raise."""
    if method == TUNED_AT_THE_END:
        return entry.metric == "accuracy" and entry.from_round is None
    return method != ORACLE or entry.has_groups
