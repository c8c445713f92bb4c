"""Federations by a formula: a source, what makes its groups differ, which labels a client holds, how many samples.

    SOURCE ':' SHIFT ('+' PART)*        fashion:swapped(4)+dirichlet(0.3)+sizes(zipf)

Every group deals the whole source among its own clients (as in IFCA's experiments), so that the groups are equally
hard. Without parts the source's test set is dealt likewise; with parts a client holds back some of its own samples
for validation and test, so that these have its labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from coterie.data import partitions
from coterie.data.builders import (
    BuildOptions,
    client_name,
    dealt_clients,
    group_shifts,
    split_client,
    without_groups,
)
from coterie.data.pools import IntArray, Pool
from coterie.data.shifts import Shift
from coterie.data.sources import GROUP, SOURCES, Source, load_source
from coterie.errors import ConfigError, did_you_mean
from coterie.federation import Client, Federation
from coterie.plugins import offered
from coterie.randomness import derive

SHORT = {"fashion": "fashion-mnist", "cifar": "cifar10"}
"""Names that a formula may use for a source beside the source's own."""
SHIFTS = ("none", "permuted", "rotated", "swapped")
SMALLEST = 5
"""Samples per client at the least: fewer leave none to test on."""
_TERM = re.compile(r"([A-Za-z]\w*)(?:\(([^()+]*)\))?")


def _refuse(text: str, at: int, why: str) -> NoReturn:
    raise ConfigError(f"scenario {text!r}, character {at + 1}: {why}")


class Term(NamedTuple):
    """A name in a formula with its arguments, and where in the text it begins, counted from 0."""

    text: str
    start: int
    name: str
    arguments: tuple[str, ...]

    def refuse(self, why: str) -> NoReturn:
        """Raise a ConfigError that says where the term is."""
        _refuse(self.text, self.start, why)

    def expect(self, known: Collection[str], what: str) -> None:
        """Refuse a name that is not known."""
        if self.name not in known:
            self.refuse(f"{self.name!r} is no {what}: {did_you_mean(self.name, known)}")

    def number(self, kind: type[float], expected: str, place: int = 0) -> float:
        """The last argument, which is at that place, as a positive number."""
        try:
            number = kind(self.arguments[place])
        except (ValueError, IndexError):
            number = math.nan
        if not 0 < number < math.inf or len(self.arguments) > place + 1:
            self.refuse(f"{self.name}({','.join(self.arguments)}): expected {expected}")
        return number


@dataclass(frozen=True)
class Formula:
    """What a formula says. A part that it does not name is None."""

    text: str
    source: str
    shift: str
    groups: int | None = None
    dirichlet: float | None = None
    classes: int | None = None
    sizes: tuple[partitions.SizeLaw, float] | None = None

    @property
    def has_parts(self) -> bool:
        """Whether clients hold back samples of their own to test on."""
        return (self.dirichlet, self.classes, self.sizes) != (None, None, None)


def parse(text: str) -> Formula:
    """The formula in a scenario's name; a misspelling is a ConfigError that says where it is."""
    source = text.partition(":")[0]
    shift, *parts = _terms(text, len(source) + 1)
    shift.expect(SHIFTS, "shift")
    found: dict[str, Any] = {}
    for part in parts:
        part.expect(_PARTS, "part")
        if part.name in found:
            part.refuse(f"{part.name!r} is given twice: keep one")
        found[part.name] = _PARTS[part.name](part)
        if {"dirichlet", "classes"} <= found.keys():
            part.refuse("dirichlet and classes both say which labels a client holds: keep one")
    return Formula(text, SHORT.get(source, source), shift.name, _groups(shift), **found)


def _terms(text: str, at: int) -> list[Term]:
    terms = []
    while True:
        match = _TERM.match(text, at)
        if match is None:
            _refuse(text, at, "expected a name such as swapped(4)")
        arguments = () if match[2] is None else tuple(value.strip() for value in match[2].split(","))
        terms.append(Term(text, at, match[1], arguments))
        at = match.end()
        if at == len(text):
            return terms
        if text[at] != "+":
            _refuse(text, at, f"expected '+' or the end, got {text[at:]!r}")
        at += 1


def _groups(shift: Term) -> int | None:
    if not shift.arguments:
        return None
    if shift.name == "none":
        shift.refuse("expected none without a number")
    return int(shift.number(int, f"the number of groups, as in {shift.name}(4)"))


def _law(part: Term) -> tuple[partitions.SizeLaw, float]:
    law, *more = part.arguments or ("",)
    if law not in partitions.SIZE_LAWS:
        part.refuse(f"sizes({law}): {did_you_mean(law, partitions.SIZE_LAWS)}")
    if more and law == "equal":
        part.refuse("expected sizes(equal) without a number")
    spread = part.number(float, f"a number above 0, as in sizes({law},1)", place=1) if more else 1.0
    return partitions.SIZE_LAWS[law], spread


_PARTS: dict[str, Callable[[Term], Any]] = {
    "classes": lambda part: part.number(int, "labels per client, as in classes(2)"),
    "dirichlet": lambda part: part.number(float, "a number above 0, as in dirichlet(0.3)"),
    "sizes": _law,
}


def check_source(formula: Formula) -> None:
    """The source is one of ours or of an installed package, which stays unloaded; else a ConfigError."""
    name = formula.source
    images = [source.name for source in SOURCES.values() if isinstance(source, Source)]
    if name not in images and name not in offered(GROUP):
        _refuse(formula.text, 0, f"{name!r} is no data set of images: {did_you_mean(name, [*SHORT, *images])}")


def combined(text: str) -> Callable[[BuildOptions], Federation]:
    """What makes the federation of a formula, such as "mnist:rotated" or "fashion:swapped(4)+dirichlet(0.3)"."""
    formula = parse(text)

    def make(order: BuildOptions) -> Federation:
        _check(formula, order)
        pool = load_source(formula.source, order.data_dir)
        deal = _held_out if formula.has_parts else _dealt
        clients: dict[int, Client] = {}
        for group, shift in enumerate(group_shifts(formula.shift, pool.classes, order.groups, order.seed)):
            members = range(group, order.clients, order.groups)
            clients |= zip(members, deal(formula, pool, members, shift, order), strict=True)
        return Federation([clients[number] for number in range(order.clients)], pool.classes, order.name)

    return make


def _check(formula: Formula, order: BuildOptions) -> None:
    if formula.groups not in (None, order.groups):
        raise ConfigError(
            f"groups={order.groups}, clients={order.clients}: {formula.text!r} has {formula.groups} groups: "
            f"leave groups out, and have at least {formula.groups} clients"
        )
    if formula.shift == "none" and formula.has_parts:
        without_groups(order)


def _dealt(formula: Formula, pool: Pool, members: range, shift: Shift, order: BuildOptions) -> list[Client]:
    """The clients of a group with random shares of the source's training and test sets."""
    return dealt_clients(pool, (np.arange(len(pool.y)), np.arange(len(pool.y_test))), members, order, shift)


def _held_out(formula: Formula, pool: Pool, members: range, shift: Shift, order: BuildOptions) -> list[Client]:
    """The clients of a group with the labels and sizes that the formula gives them."""
    group = members[0]
    seed = order.seed if order.groups == 1 else derive(order.seed, "group", group)
    parts = _partition(formula, pool.y, len(members), order.samples, seed)
    return [
        split_client(client_name(number, order.clients), pool, index, group, order, shift)
        for number, index in zip(members, parts, strict=True)
    ]


def _partition(
    formula: Formula, labels: IntArray, clients: int, samples: int | None, seed: int
) -> partitions.Partition:
    """Which samples each client of a group holds; `samples` is how many, or their mean under a law of sizes."""
    each: int | IntArray | None = samples
    if formula.sizes is not None:
        least = max(SMALLEST, formula.classes or 0)
        each = partitions.sizes_by_law(*formula.sizes, len(labels), clients, samples, least, seed)
    if formula.dirichlet is not None:
        return partitions.dirichlet(labels, clients, formula.dirichlet, seed, each, minimum=SMALLEST)
    if formula.classes is not None:
        return partitions.classes_per_client(labels, clients, formula.classes, seed, each)
    return partitions.iid(len(labels), clients, each, seed)
