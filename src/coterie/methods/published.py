"""A method as its paper prints it: where our defaults depart, why, and the one switch that undoes them."""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.errors import ConfigError


class Departure(NamedTuple):
    """An option whose default is not the paper's."""

    option: str
    paper: Any
    """The value that computes what the paper prints."""
    why: str
    """What our default does instead, and why."""


def departures_of(cls: type) -> tuple[Departure, ...]:
    """Where the defaults of a method depart from its paper; none for one that says nothing of it."""
    found: tuple[Departure, ...] = getattr(cls, "departures", ())
    return found


def as_published(cls: type, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with `as=paper` spelled out: every departure undone; what is given beside it counts.

    Example:
        >>> from coterie.methods import make_method
        >>> make_method("cfl:as=paper").rule
        'paper'
    """
    given = dict(options)
    version = given.pop("as")
    if version != "paper":
        raise ConfigError(f"method {name!r}, option as={version!r}: expected paper")
    return {departure.option: departure.paper for departure in departures_of(cls)} | given
