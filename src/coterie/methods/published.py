"""A method as its paper prints it: where our defaults depart, why, and the one switch that undoes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from coterie.errors import ConfigError, did_you_mean
from coterie.methods.papers import PAPERS, Paper, Table

PRINTED = "paper"
"""The value of `as` that undoes every departure; the other values are the names of the paper's tables."""


class Departure(NamedTuple):
    """An option whose default is not the paper's."""

    option: str
    paper: Any
    """The value that computes what the paper prints."""
    why: str
    """What our default does instead, and why."""


def departures_of(cls: type) -> tuple[Departure, ...]:
    """Where the defaults of a method depart from its paper; none for one that computes what its paper prints."""
    found: tuple[Departure, ...] = getattr(cls, "departures", ())
    return found


def paper_of(cls: type) -> Paper | None:
    """The paper of a method, which a class of another package names as `paper`; None for one without."""
    found: Paper | None = getattr(cls, "paper", None) or PAPERS.get(getattr(cls, "name", ""))
    return found


def table_of(cls: type, name: str, version: Any) -> Table:
    """The hyper-parameters that `as=version` stands for; ConfigError where the paper has no such table."""
    paper = paper_of(cls)
    if paper is None:
        raise ConfigError(f"method {name!r}, option as={version!r}: it has no paper, leave it out")
    known = {PRINTED: Table("the algorithm, without a table's hyper-parameters"), **paper.tables}
    if version not in known:
        raise ConfigError(f"method {name!r}, option as={version!r}: {did_you_mean(str(version), known)}")
    return known[version]


def as_published(cls: type, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with `as=paper` spelled out: every departure undone; what is given beside it counts.

    Example:
        >>> from coterie.methods import make_method
        >>> make_method("cfl:as=paper").rule
        'paper'
        >>> make_method("ifca:as=table1-mnist,k=3").k
        3
    """
    given = {key: value for key, value in options.items() if key != "as"}
    table = table_of(cls, name, options["as"])
    undone = {departure.option: departure.paper for departure in departures_of(cls)}
    return {**undone, **table.options, **given}
