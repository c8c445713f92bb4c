"""A method as its paper prints it: where our defaults depart, why, and the one switch that undoes them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from coterie.errors import ConfigError, did_you_mean

PRINTED = "paper"
"""The value of `as` that undoes every departure; the other values are the names of the paper's tables."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Table(NamedTuple):
    """The hyper-parameters of a table or figure, with which `as=NAME` fills in what is not given."""

    about: str
    options: Mapping[str, Any] = NOTHING
    """Of the method."""
    training: Mapping[str, Any] = NOTHING
    """Of the run: rounds and local training."""
    federation: Mapping[str, Any] = NOTHING
    """The scenario, its size and the network; none of it counts beside data or a scenario of one's own."""
    ours: str = ""
    """What the paper does not print, and where it is from."""


class Departure(NamedTuple):
    """A point in which a default is not the paper's; one option may stand for several points."""

    option: str
    paper: Any
    """The option's value that computes what the paper prints."""
    here: str
    """What our default does instead."""
    why: str
    """Why, and what it changes."""


class Difference(NamedTuple):
    """What is different from the paper with `as=paper` too."""

    printed: str
    here: str
    why: str


class Paper(NamedTuple):
    """What a method is published in."""

    citation: str
    departures: tuple[Departure, ...] = ()
    differences: tuple[Difference, ...] = ()
    tables: Mapping[str, Table] = NOTHING


def read_papers(path: Path) -> dict[str, Paper]:
    """The papers by their methods' names, from a TOML file with the fields of the classes above."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: _paper(**row) for name, row in rows.items()}


def _paper(
    citation: str,
    departures: Sequence[Any] = (),
    differences: Sequence[Any] = (),
    tables: Mapping[str, Any] = NOTHING,
) -> Paper:
    points = tuple(Departure(**row) for row in departures)
    others = tuple(Difference(**row) for row in differences)
    known = {name: Table(**{key: _frozen(value) for key, value in table.items()}) for name, table in tables.items()}
    return Paper(citation, points, others, known or NOTHING)


def _frozen(value: Any) -> Any:
    """The value with tuples in place of lists."""
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


PAPERS: Mapping[str, Paper] = read_papers(Path(__file__).with_name("papers.toml"))
"""By the method's name; one that is not here, as `local`, has none."""


def departures_of(cls: type) -> tuple[Departure, ...]:
    """Where the defaults of a method depart from its paper; none for one that computes what its paper prints."""
    paper = paper_of(cls)
    return () if paper is None else paper.departures


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
