"""Federations drawn from a grid, each by its number, to judge what FLT makes of them when nothing is given."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from coterie import Client, Federation, Split
from coterie.data import BuildOptions, by_group_classes, by_writer, combined, load_source
from coterie.randomness import derive, numpy_generator

ONE_FAMILY = ("iid", "dirichlet 1", "dirichlet 0.3", "writers")
SOURCES = {"digits": "digits", "mnist": "mnist", "fashion": "fashion-mnist"}
PROPORTIONS = (12, 5, 2, 1)
"""Clients of unequal groups, of twenty; of other numbers in proportion."""
CLASSES = 10
OF_A_CLASS = {"mnist": 5400, "fashion": 6000}
"""Training images of each class, at the least."""


@dataclass(frozen=True)
class Case:
    """One federation of the grid."""

    number: int
    data: str
    shift: str
    clients: int
    samples: int | None
    """Training samples per client; None deals out all that there are."""
    groups: int
    unequal: bool
    encoder: str
    """Given by the package, or trained on the case's own source."""

    @property
    def kind(self) -> str:
        """One family, or groups of a kind."""
        if self.shift in ONE_FAMILY:
            return "one family"
        return f"{self.shift}, unequal" if self.unequal else self.shift

    def words(self) -> str:
        """The case in a line."""
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        sizes = " of unequal sizes" if self.unequal else ""
        each = "all samples" if self.samples is None else f"{self.samples} samples each"
        return (
            f"{self.number}: {self.data} {self.shift}, {self.clients} clients, {each}{groups}{sizes}, "
            f"encoder {self.encoder}"
        )


def draw(number: int) -> Case:
    """The federation of that number; its settings are drawn independently where the data allow."""
    r = random.Random(f"flt-decisions/{number}")
    shift = r.choices([*ONE_FAMILY, "disjoint", "overlapping", "rotated"], [12, 7, 7, 12, 24, 24, 14])[0]
    data = r.choices(["digits", "mnist", "fashion"], [4, 3, 3])[0]
    clients = r.choice([20, 30, 40, 60, 100, 150, 200])
    samples: int | None = r.choice([50, 100, 200])
    unequal = r.random() < 0.35
    groups = {"disjoint": r.choice([2, 3, 4, 5]), "overlapping": r.choice([3, 4, 5]), "rotated": r.choice([2, 4])}
    encoder = r.choice(["default", "trained"])
    if shift == "writers":
        data, samples = "mnist", None
    if data == "digits":
        clients, samples, encoder = r.choice([20, 30, 40]), None, "default"
    many = groups.get(shift, 1)
    unequal = unequal and shift == "disjoint"
    drawn = Case(number, data, shift, clients, samples, 4 if unequal else many, unequal, encoder)
    return replace(drawn, samples=affordable(drawn)) if unequal else drawn


def affordable(case: Case) -> int | None:
    """The samples per client, halved until the largest of unequal groups has enough of its classes."""
    samples, largest = case.samples, max(Counter(group_numbers(case)).values())
    while samples is not None and samples * largest > OF_A_CLASS[case.data] * (CLASSES // case.groups):
        samples //= 2
    return samples


def federation_of(case: Case, data_dir: str | None) -> Federation:
    """The clients of a case."""
    seed, folder = derive(case.number, "flt-decisions"), None if data_dir is None else Path(data_dir)
    options = BuildOptions(case.shift, case.clients, case.samples, case.groups, seed, folder)
    source = SOURCES[case.data]
    if case.shift.startswith("dirichlet"):
        return combined(f"{source}:none+dirichlet({case.shift.split()[1]})")(options)
    if case.shift == "writers":
        return by_writer("mnist-writers")(options)
    if case.shift in ("iid", "rotated"):
        return combined(f"{source}:{'none' if case.shift == 'iid' else case.shift}")(options)
    return by_random_classes(source, case, options)


def by_random_classes(source: str, case: Case, options: BuildOptions) -> Federation:
    """Groups with classes of their own, drawn at random; overlapping ones share one with the next, in a ring."""
    pool, generator = load_source(source, options.data_dir), numpy_generator(options.seed, "classes")
    ring = [int(c) for c in generator.permutation(CLASSES)]
    cuts = [round(g * CLASSES / case.groups) for g in range(case.groups + 1)]
    sets = [ring[a:b] for a, b in pairwise(cuts)]
    if case.shift == "overlapping":
        sets = [[*own, after[0]] for own, after in zip(sets, sets[1:] + sets[:1], strict=True)]
    groups = group_numbers(case)
    train = by_group_classes(pool.y, sets, groups, case.samples, options.seed)
    clients = []
    for number, group in enumerate(groups):
        own = Split(pool.images(train[number]), pool.labels(train[number]))
        few = Split(own.x[:5], own.y[:5])
        clients.append(Client(f"client-{number:03d}", own, few, few, group))
    return Federation(clients, pool.classes)


def group_numbers(case: Case) -> list[int]:
    """The group of each client: in turn, or by PROPORTIONS."""
    if not case.unequal:
        return [number % case.groups for number in range(case.clients)]
    sizes = [max(1, case.clients * size // sum(PROPORTIONS)) for size in PROPORTIONS]
    sizes[0] += case.clients - sum(sizes)
    return [group for group, size in enumerate(sizes) for _ in range(size)]
