"""Federations by a formula: a source, what makes its groups differ, which labels a client holds, how many samples.

    SOURCE ':' SHIFT ('+' PART)*        fashion:swapped(4)+dirichlet(0.3)+sizes(zipf)

Every group deals the whole source among its own clients (as in IFCA's experiments), so that the groups are equally
hard. Without parts the source's test set is dealt likewise; with parts a client holds back some of its own samples
for validation and test, so that these have its labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

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
from coterie.data.sources import GROUP, SOURCES, load_source
from coterie.errors import ConfigError, did_you_mean
from coterie.federation import Client, Federation
from coterie.plugins import offered
from coterie.randomness import derive

SHORT = {"fashion": "fashion-mnist", "cifar": "cifar10"}
"""Names that a formula may use for a source beside the source's own."""
SHIFTS = ("none", "permuted", "rotated", "swapped")
PARTS = ("classes", "dirichlet", "sizes")
SMALLEST = 5
"""Samples per client at the least: fewer leave none to test on."""
_TERM = re.compile(r"([A-Za-z]\w*)(?:\(([^()+]*)\))?")


class Term(NamedTuple):
    """A name in a formula with its arguments, and where it begins, counted from 0."""

    name: str
    arguments: tuple[str, ...]
    start: int


@dataclass(frozen=True)
class Formula:
    """What a formula says. A part that it does not name is None."""

    text: str
    source: str
    shift: str
    groups: int | None = None
    alpha: float | None = None
    classes: int | None = None
    sizes: tuple[partitions.SizeLaw, float] | None = None

    @property
    def has_parts(self) -> bool:
        """Whether clients hold back samples of their own to test on."""
        return (self.alpha, self.classes, self.sizes) != (None, None, None)


def parse(text: str) -> Formula:
    """The formula in a scenario's name; a misspelling is a ConfigError that says where it is."""
    source = text.partition(":")[0]
    shift, *parts = _terms(text, len(source) + 1)
    _expect(text, shift, SHIFTS, "shift")
    found: dict[str, object] = {}
    for part in parts:
        _expect(text, part, PARTS, "part")
        values = _PART_VALUES[part.name](text, part)
        if found.keys() & values.keys():
            _refuse(text, part.start, f"{part.name!r} is given twice: keep one")
        found |= values
    if "alpha" in found and "classes" in found:
        _refuse(text, parts[-1].start, "dirichlet and classes both say which labels a client holds: keep one")
    return Formula(text, SHORT.get(source, source), shift.name, _groups(text, shift), **found)  # type: ignore[arg-type]


def check_source(formula: Formula) -> None:
    """The source is one of ours or of an installed package, which stays unloaded; else a ConfigError."""
    name = formula.source
    if name not in SOURCES and name not in offered(GROUP):
        _refuse(formula.text, 0, f"{name!r} is no data set of images: {did_you_mean(name, [*SHORT, *SOURCES])}")


def _terms(text: str, at: int) -> list[Term]:
    terms = []
    while True:
        match = _TERM.match(text, at)
        if match is None:
            _refuse(text, at, "expected a name such as swapped(4)")
        arguments = tuple(value.strip() for value in match[2].split(",")) if match[2] is not None else ()
        terms.append(Term(match[1], arguments, at))
        at = match.end()
        if at == len(text):
            return terms
        if text[at] != "+":
            _refuse(text, at, f"expected '+' or the end, got {text[at:]!r}")
        at += 1


def _refuse(text: str, at: int, why: str) -> NoReturn:
    raise ConfigError(f"scenario {text!r}, character {at + 1}: {why}")


def _expect(text: str, term: Term, known: Iterable[str], what: str) -> None:
    if term.name not in known:
        _refuse(text, term.start, f"{term.name!r} is no {what}: {did_you_mean(term.name, known)}")


def _number(text: str, term: Term, value: str, expected: str, whole: bool) -> float:
    """A positive number, whole where it counts something."""
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        _refuse(text, term.start, f"{term.name}({','.join(term.arguments)}): expected {expected}")
    return number


def _groups(text: str, shift: Term) -> int | None:
    if not shift.arguments:
        return None
    expected = "none without a number" if shift.name == "none" else f"the number of groups, as in {shift.name}(4)"
    value = shift.arguments[0] if len(shift.arguments) == 1 and shift.name != "none" else ""
    return int(_number(text, shift, value, expected, whole=True))


def _dirichlet_values(text: str, part: Term) -> dict[str, object]:
    value = part.arguments[0] if len(part.arguments) == 1 else ""
    return {"alpha": _number(text, part, value, "a number above 0, as in dirichlet(0.3)", whole=False)}


def _classes_values(text: str, part: Term) -> dict[str, object]:
    value = part.arguments[0] if len(part.arguments) == 1 else ""
    return {"classes": int(_number(text, part, value, "labels per client, as in classes(2)", whole=True))}


def _sizes_values(text: str, part: Term) -> dict[str, object]:
    law, *more = part.arguments or ("",)
    if law not in partitions.SIZE_LAWS:
        _refuse(text, part.start, f"sizes({law}): {did_you_mean(law, partitions.SIZE_LAWS)}")
    if len(more) > (law != "equal"):
        _refuse(text, part.start, f"sizes({','.join(part.arguments)}): expected sizes({law}) without more")
    spread = _number(text, part, more[0], f"a number above 0, as in sizes({law},1)", whole=False) if more else 1.0
    return {"sizes": (partitions.SIZE_LAWS[law], spread)}


_PART_VALUES = {"classes": _classes_values, "dirichlet": _dirichlet_values, "sizes": _sizes_values}


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
    if formula.alpha is not None:
        return partitions.dirichlet(labels, clients, formula.alpha, seed, each, minimum=SMALLEST)
    if formula.classes is not None:
        return partitions.classes_per_client(labels, clients, formula.classes, seed, each)
    return partitions.iid(len(labels), clients, each, seed)
