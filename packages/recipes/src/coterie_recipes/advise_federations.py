"""Federations drawn by number, of every kind that advice must tell apart, to judge what `advise` says of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from coterie import Federation, Split
from coterie.data import BuildOptions, class_sets, combined, find_scenario
from coterie.randomness import derive, numpy_generator

KINDS = (
    "iid",
    "dirichlet 0.1",
    "dirichlet 0.3",
    "dirichlet 1",
    "halves",
    "permuted",
    "swapped",
    "rotated",
    "disjoint",
    "overlapping",
    "writers",
    "heart-disease",
    "schools",
)
"""Number n is of kind n modulo their number, so that consecutive numbers cover all."""
SOURCES = {"digits": "digits", "mnist": "mnist", "fashion": "fashion-mnist"}
SCHOOLS = ("hsb82", "exam", "chem97")
CLASSES = 10
ROUNDS = 60
JUDGED = 1000
"""The number from which on federations are smaller, so that ten methods on each take minutes."""
DEALT = 6
"""How many times its training samples a client of label skew is dealt."""
TESTS = {False: 200, True: 120}
"""Test samples per client, at the most: of large federations and of smaller ones."""


@dataclass(frozen=True)
class Case:
    """One federation, and how its clients train."""

    number: int
    kind: str
    data: str
    clients: int
    samples: int | None
    """Training samples per client; None: all that there are."""
    groups: int
    participation: float
    epochs: int

    def words(self) -> str:
        """The case in a line."""
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        each = "all samples" if self.samples is None else f"{self.samples} samples each"
        part = "" if self.participation == 1 else f", participation {self.participation:g}"
        name = self.data if self.kind == self.data else f"{self.data} {self.kind}"
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        return f"{self.number}: {name}, {self.clients} clients, {each}{groups}{part}, {epochs}"

    @property
    def metric(self) -> str:
        """What it is judged by: accuracy, the area under the ROC curve, or the share of the variance explained."""
        if self.kind == "heart-disease":
            return "auc"
        return "r2" if self.kind == "schools" else "accuracy"


def draw(number: int) -> Case:
    """The federation of that number: its kind goes by turns, its settings are drawn where the data allow."""
    r, kind = random.Random(f"advise/{number}"), KINDS[number % len(KINDS)]
    data = r.choices(["digits", "mnist", "fashion"], [4, 3, 3])[0]
    clients, samples = r.choice([8, 12, 16, 20, 30]), r.choice([50, 100, 150])
    few, epochs = r.choice([20, 40, 60]), r.choice([1, 3])
    participation = r.choices([1.0, 0.5, 0.3], [7, 2, 1])[0]
    groups = {
        "halves": 2,
        "permuted": r.choice([2, 3, 4]),
        "swapped": r.choice([2, 3, 4]),
        "rotated": r.choice([2, 4]),
        "disjoint": r.choice([3, 4, 5]),
        "overlapping": r.choice([3, 4, 5]),
    }.get(kind, 1)
    most = r.choice([None, 40])
    schools, writers = r.choice(SCHOOLS), r.choice([16, 30, 40])
    if kind == "schools":
        return Case(number, kind, schools, r.choice([16, 30, 50]), None, 1, participation, 1)
    if kind == "heart-disease":
        return Case(number, kind, kind, 4, most, 1, 1.0, 1)
    if kind == "writers":
        return Case(number, kind, "mnist", 16 if number >= JUDGED else writers, None, 1, participation, 1)
    if data == "digits":
        clients = r.choice([8, 12, 20, 30, 40, 60])
        if kind == "overlapping":
            clients = min(clients, 20)
        whole = clients > 30 or kind.startswith("dirichlet")
        return Case(number, kind, data, clients, None if whole else few, groups, participation, 3)
    if number >= JUDGED:
        clients, samples = min(clients, 16), min(samples, 100)
    if participation * clients * samples * epochs > (3600 if number >= JUDGED else 7200):
        epochs = 1
    return Case(number, kind, data, clients, samples, groups, participation, epochs)


def federation_of(case: Case, data_dir: str | None) -> Federation:
    """The clients of a case."""
    seed, folder = derive(case.number, "advise"), None if data_dir is None else Path(data_dir)
    options = BuildOptions(case.kind, case.clients, case.samples, case.groups, seed, folder)
    if case.kind in ("schools", "heart-disease", "writers"):
        scenario = find_scenario("mnist-writers" if case.kind == "writers" else case.data)
        return _cut(scenario.build(clients=case.clients, seed=seed, data_dir=folder), case)
    source = SOURCES[case.data]
    if case.kind.startswith("dirichlet"):
        # A fifth of what is dealt is for tests: more is dealt than clients train on, or tests would be small.
        dealt = options._replace(samples=None if case.samples is None else DEALT * case.samples)
        return _cut(combined(f"{source}:none+dirichlet({case.kind.split()[1]})")(dealt), case)
    if case.kind in ("halves", "disjoint", "overlapping"):
        sets = class_rings(case.groups, seed, overlap=case.kind == "overlapping")
        return _cut(class_sets(source, lambda groups: sets)(options), case)
    return _cut(combined(f"{source}:{'none' if case.kind == 'iid' else case.kind}")(options), case)


def _cut(federation: Federation, case: Case) -> Federation:
    """The clients with `samples` for training and a tenth of that for validation, and no more tests than needed."""
    cut, samples = [], case.samples
    for client in federation:
        train, held = (len(client.train), len(client.validation)) if samples is None else (samples, samples // 10)
        tests = TESTS[case.number >= JUDGED]
        parts = zip((client.train, client.validation, client.test), (train, held, tests), strict=True)
        kept = [Split(part.x[:n], part.y[:n]) for part, n in parts]
        cut.append(replace(client, train=kept[0], validation=kept[1], test=kept[2]))
    return federation.with_clients(cut)


def class_rings(groups: int, seed: int, *, overlap: bool) -> list[list[int]]:
    """Each group's classes, drawn at random; overlapping ones share one with the next, in a ring."""
    ring = [int(c) for c in numpy_generator(seed, "classes").permutation(CLASSES)]
    cuts = [round(g * CLASSES / groups) for g in range(groups + 1)]
    sets = [ring[a:b] for a, b in pairwise(cuts)]
    return [[*own, after[0]] for own, after in zip(sets, sets[1:] + sets[:1], strict=True)] if overlap else sets


def training_of(case: Case) -> dict[str, object]:
    """How the case is run: the arguments of `coterie.run`, and of `advise`, beside method and federation."""
    return {
        "model": {"schools": "linear", "heart-disease": "logistic"}.get(case.kind, "mlp"),
        "rounds": ROUNDS,
        "lr": 0.05 if case.kind == "schools" else 0.1,
        "epochs": case.epochs,
        "batch_size": 32,
        "participation": case.participation,
        "seed": case.number,
        "workers": 1,
    }
