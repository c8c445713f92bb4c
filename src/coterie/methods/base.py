"""What every method is: three functions on an explicit state, and the registry that finds methods by name."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError
from torch import Tensor

from coterie.errors import ConfigError, did_you_mean
from coterie.methods.server import Server


@dataclass(frozen=True)
class Event:
    """Something worth telling: what happened, in words, and its evidence in numbers."""

    kind: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterInfo:
    """What the server saw of one cluster in a round; None where it saw nothing."""

    members: int
    train_loss: float | None = None
    mean_norm: float | None = None
    max_norm: float | None = None


@dataclass(frozen=True)
class Info:
    """What a round tells about itself."""

    clusters: Sequence[ClusterInfo] = ()
    events: Sequence[Event] = ()


@dataclass(frozen=True)
class Assignment:
    """Which model each client is given: `members[i]` use `models[i]`, with their own `private` layers if any.

    `exceptions` are clients that are better served by another model than their cluster's.
    """

    models: Sequence[Tensor]
    members: Sequence[Sequence[str]]
    private: tuple[str, ...] = ()
    exceptions: Mapping[str, Tensor] = field(default_factory=dict)


class Method(Protocol):
    """A federated method. Its options are its fields; its state is a dataclass marked with `@saved`.

    A method may also have `finish(state, server) -> state`, called once after the last round.
    """

    def start(self, server: Server) -> Any:
        """The state before the first round."""
        ...

    def round(self, state: Any, t: int, server: Server) -> tuple[Any, Info]:
        """One round, counted from 1: the next state and what there is to tell."""
        ...

    def assignment(self, state: Any, server: Server) -> Assignment:
        """The model of every client, as things stand."""
        ...


M = TypeVar("M", bound=type)
_METHODS: dict[str, type] = {}


def method(name: str) -> Callable[[M], M]:
    """Class decorator that makes a method known by `name`; its docstring's first line is its summary."""

    def register(cls: M) -> M:
        _METHODS[name] = cls
        cls.name = name  # type: ignore[attr-defined]
        return cls

    return register


def method_classes() -> dict[str, type]:
    """All known methods by name: ours, and those that installed packages offer as `coterie.methods` entry points."""
    return {point.name: _load(point) for point in _offered()} | _METHODS


def find_method(name: str) -> type:
    """The class of the method of that name, or a ConfigError with a suggestion; other packages stay unloaded."""
    if name in _METHODS:
        return _METHODS[name]
    offered = {point.name: point for point in _offered()}
    if name not in offered:
        raise ConfigError(f"unknown method {name!r}: {did_you_mean(name, [*_METHODS, *offered])}")
    return _load(offered[name])


def _offered() -> list[EntryPoint]:
    return [point for point in entry_points(group="coterie.methods") if point.name not in _METHODS]


def _load(point: EntryPoint) -> type:
    """The class that an installed package offers; it is called by the name the package gave it."""
    try:
        cls: type = point.load()
    except (ImportError, AttributeError) as problem:
        raise ConfigError(
            f"method {point.name!r}: {point.value} cannot be loaded ({problem}): repair or remove the package"
        ) from problem
    if "name" not in vars(cls):
        cls.name = point.name  # type: ignore[attr-defined]
    return cls


def make_method(spec: str) -> Method:
    """The method written as `name` or `name:key=value,key=value`."""
    name, _, text = spec.partition(":")
    find_method(name)
    return build_method(name, parse_options(text, spec))


def build_method(name: str, options: dict[str, Any]) -> Method:
    """The named method with its options checked before anything else happens."""
    cls = find_method(name)
    known = [f.name for f in fields(cls)] if is_dataclass(cls) else []
    for key in options:
        if key not in known:
            hint = did_you_mean(key, known) if known else "it has none"
            raise ConfigError(f"method {name!r} has no option {key!r}: {hint}")
    try:
        made: Method = cls(**options)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(str(part) for part in first["loc"][:1]) or "options"
        raise ConfigError(f"method {name!r}, option {where}={first.get('input')!r}: {first['msg']}") from problem
    except (TypeError, ValueError) as problem:  # a class of another package, with checks of its own
        raise ConfigError(f"method {name!r}: {problem}") from problem
    return made


def parse_options(text: str, spec: str) -> dict[str, Any]:
    """The options in `key=value,key=value`; values are Python literals where they read as such, else text."""
    options: dict[str, Any] = {}
    for part in split_outside_brackets(text):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{spec!r}: expected name:key=value,key=value, got {part!r}")
        options[key.strip()] = literal(value.strip())
    return options


def literal(text: str) -> Any:
    """The Python value that the text spells, or the text itself."""
    if text.lower() in {"true", "false", "none"}:
        return {"true": True, "false": False, "none": None}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def split_outside_brackets(text: str) -> list[str]:
    """The parts between commas that stand in no bracket and no quotes."""
    parts, depth, start, quote = [], 0, 0, ""
    for i, char in enumerate(text):
        if quote or char in "'\"":
            quote = char if not quote else ("" if char == quote else quote)
            continue
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part for part in [*parts, text[start:]] if part.strip()]
