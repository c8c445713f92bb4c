"""What installed packages add through entry points: methods, rules, scenarios, data sources, commands, names."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from coterie.errors import ConfigError

T = TypeVar("T")


def offered(group: str) -> dict[str, EntryPoint]:
    """What installed packages offer in a group of entry points, by name; nothing is loaded."""
    return {point.name: point for point in entry_points(group=group)}


def required(group: str, name: str, what: str, distribution: str) -> Any:
    """The object that a package beside the core offers; ConfigError that names the package where it is missing.

    Args:
        group: the group of entry points.
        name: the entry point's name.
        what: what needs it, for the message: "coterie.compare".
        distribution: the package that has it.
    """
    point = offered(group).get(name)
    if point is None:
        raise ConfigError(f"{what} is in a package of its own: pip install {distribution}")
    return load(point, "name")


def load(point: EntryPoint, what: str) -> Any:
    """The object behind an entry point; ConfigError that names the package if it cannot be loaded.

    Args:
        point: the entry point.
        what: what it should be, in a word for the message: "method", "scenario".
    """
    try:
        return point.load()
    except Exception as problem:  # another package may fail in any way when it is imported
        raise ConfigError(
            f"{what} {point.name!r}: {point.value} of the package {package(point)!r} cannot be loaded "
            f"({type(problem).__name__}: {problem}): repair or remove the package"
        ) from problem


def load_as(point: EntryPoint, what: str, *kinds: type[T]) -> T:
    """The object behind an entry point, of one of the `kinds` and of the entry point's name; ConfigError otherwise."""
    found = load(point, what)
    if not isinstance(found, kinds):
        raise ConfigError(
            f"{what} {point.name!r}: {point.value} of the package {package(point)!r} is a {type(found).__name__}, "
            f"expected a {' or a '.join(kind.__name__ for kind in kinds)}: repair or remove the package"
        )
    check_name(point, what, getattr(found, "name", point.name))
    return found


def check_name(point: EntryPoint, what: str, name: str) -> None:
    """ConfigError unless an object has the name under which a package offers it: a run is resumed by that name."""
    if name != point.name:
        raise ConfigError(
            f"{what} {point.name!r} of the package {package(point)!r} calls itself {name!r}: use one name, there and "
            "in the entry point"
        )


def package(point: EntryPoint) -> str:
    """The name of the installed package that an entry point belongs to."""
    return point.dist.name if point.dist is not None else point.module
