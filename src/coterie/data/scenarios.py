"""Named federations: a data source, who holds what, and what makes the hidden groups differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from coterie.data import builders, drifting, flt_scenarios, natural
from coterie.data.combined import check_source, combined, parse
from coterie.data.scenario import Defaults, Scenario
from coterie.data.sites import FOLIATED, SUBURBAN
from coterie.errors import ConfigError, did_you_mean
from coterie.plugins import load_as, offered
from coterie.trainers.base import Training

GROUP = "coterie.scenarios"
"""The group of entry points in which packages offer scenarios."""
ALIASES = {
    "cifar": "cifar-iid", "cifar10": "cifar-iid", "cifar-10": "cifar-iid", "digits": "digits-iid",
    "fashion": "fashion-iid", "fashion-mnist": "fashion-iid", "mnist": "mnist-iid",
}  # fmt: skip
"""Data sets that are asked for by name alone: all clients of one distribution."""


def find_scenario(name: str) -> Scenario:
    """The scenario of that name or formula, or a ConfigError with a suggestion; other packages stay unloaded."""
    name = ALIASES.get(name, name)
    if name in _SCENARIOS:
        return _SCENARIOS[name]
    if ":" in name:
        return by_formula(name)
    points = offered(GROUP)
    if name not in points:
        raise ConfigError(f"unknown scenario {name!r}: {did_you_mean(name, [*_SCENARIOS, *points])}")
    return load_as(points[name], "scenario", Scenario)


def list_scenarios() -> tuple[Scenario, ...]:
    """All scenarios by name: ours, and those that installed packages offer as `coterie.scenarios` entry points."""
    return tuple(find_scenario(name) for name in scenario_names())


def scenario_names() -> list[str]:
    """The names of all scenarios; no package is loaded."""
    return sorted({*_SCENARIOS, *offered(GROUP)})


_DIGITS = Defaults(rounds=100, training=Training(lr=0.1, epochs=3, batch_size=32))
_CIFAR = Defaults(model="cnn-cifar", rounds=150, training=Training(lr=0.05, epochs=3, batch_size=100))
_PUPILS = Defaults(model="linear", rounds=50, training=Training(lr=0.05, epochs=1, batch_size=32))
_TOY = Defaults(model="logistic", rounds=50, training=Training(lr=0.1, epochs=1, batch_size=None))
USUAL: dict[str, tuple[int | None, Defaults]] = {
    "digits": (None, _DIGITS),
    **dict.fromkeys(("mnist", "fashion-mnist", "mnist+fashion", "emnist"), (500, _DIGITS)),
    **dict.fromkeys(("cifar10", "cifar100"), (2000, _CIFAR)),
}
"""Samples per client and defaults of the federations that a formula makes of a source."""


def by_formula(text: str) -> Scenario:
    """The scenario of a formula such as `fashion:swapped(4)+dirichlet(0.3)`; see coterie.data.combined."""
    formula = parse(text)
    check_source(formula)
    samples, defaults = USUAL.get(formula.source, (None, Defaults()))
    groups = 1 if formula.shift == "none" else (formula.groups or Scenario.groups)
    if groups == 1 and formula.has_parts:
        samples = None
    return Scenario(text, "", combined(text), samples=samples, groups=groups, defaults=defaults)


SHIFTS = {
    "iid": "every client draws from the same distribution",
    "permuted": "each group has its own permutation of the labels",
    "swapped": "each group has two labels swapped",
    "rotated": "each group's images are turned by 0, 90, 180, 270 degrees",
}


def _of_images() -> Iterator[Scenario]:
    """Four sets of images with every shift, and with labels skewed in three ways."""
    for short, title, source in (
        ("digits", "scikit-learn digits (8×8)", "digits"),
        ("mnist", "MNIST", "mnist"),
        ("fashion", "Fashion-MNIST", "fashion-mnist"),
        ("cifar", "CIFAR-10", "cifar10"),
    ):
        for shift, difference in SHIFTS.items():
            formula = f"{short}:{'none' if shift == 'iid' else shift}"
            yield replace(by_formula(formula), name=f"{short}-{shift}", summary=f"{title}: {difference}")
        yield replace(
            by_formula(f"{short}:none+dirichlet(0.3)"),
            name=f"{short}-dirichlet",
            summary=f"{title}: label skew by Dirichlet(0.3), no groups",
        )
        _, defaults = USUAL[source]
        yield Scenario(
            f"{short}-dirichlet-quarters",
            f"{title}: a quarter of the clients each with Dirichlet α = 1000, 1, 0.5, 0.1",
            builders.dirichlet_quarters(source),
            clients=20 if short == "digits" else 100,
            defaults=defaults,
        )
        yield Scenario(
            f"{short}-halves",
            f"{title}: classes 0-4 and 5-9 with different clients; one model can fit both (congruent)",
            builders.class_sets(source, lambda groups: builders.even_class_sets(10, groups)),
            samples=None if short == "digits" else 500,
            groups=2,
            defaults=defaults,
        )


def _drifting() -> Iterator[Scenario]:
    """Groups that change with time."""
    for short, title in (("digits", "scikit-learn digits (8×8)"), ("mnist", "MNIST")):
        yield Scenario(
            f"{short}-drift",
            f"{title}: label permutations that groups exchange from round {drifting.EXCHANGE} on, take back from "
            f"{drifting.RETURN}, and a new group from {drifting.NEW_GROUP}",
            drifting.drifting(short),
            clients=12,
            samples=USUAL[short][0],
            groups=2,
            defaults=Defaults(rounds=120, training=Training(lr=0.1, epochs=3, batch_size=32)),
        )


def _schools() -> Iterator[Scenario]:
    """Pupils by school."""
    for name, label, schools, drop, summary in (
        ("hsb82", "mAch", 100, ("rownames", "school"), "pupils of real schools in the USA: mathematics achievement"),
        (
            "exam",
            "normexam",
            50,
            ("rownames", "school", "student"),
            "pupils of real schools in London: examination score",
        ),
        (
            "chem97",
            "score",
            100,
            ("rownames", "school", "student", "lea", "gcsecnt"),
            "pupils of real schools in Britain: chemistry score",
        ),
    ):
        yield Scenario(
            name,
            f"{summary} (regression)",
            natural.sites(name, label, task="regression", drop=drop),
            clients=schools,
            groups=1,
            defaults=_PUPILS,
        )


_OURS = (
    *_of_images(),
    *_drifting(),
    Scenario(
        "mnist-writers",
        "MNIST by its real writers (QMNIST): a natural federation without known groups",
        builders.by_writer("mnist-writers"),
        clients=200,
        groups=1,
        defaults=_DIGITS,
    ),
    Scenario(
        "femnist",
        "LEAF FEMNIST by its real writers",
        builders.by_writer("femnist"),
        clients=200,
        groups=1,
        defaults=replace(_DIGITS, model="cnn-leaf"),
    ),
    Scenario(
        "agnews-topics",
        "AG-News: next-word prediction, each group one topic",
        builders.news_topics,
        defaults=Defaults(
            model="lstm:embedding=32,hidden=64", rounds=60, training=Training(lr=3.0, epochs=1, batch_size=16)
        ),
    ),
    Scenario(
        "shakespeare-speakers",
        "Shakespeare's plays: next-character prediction, each client one speaker",
        builders.speakers,
        groups=1,
        defaults=Defaults(model="lstm", rounds=60, training=Training(lr=1.0, epochs=1, batch_size=16)),
    ),
    Scenario(
        "linear-mixture",
        "synthetic linear regressions, each group its own weights (IFCA's theory setting)",
        builders.linear_mixture,
        clients=100,
        samples=100,
        groups=2,
        defaults=Defaults(model="linear", rounds=300, training=Training(lr=0.1, steps=1, batch_size=None)),
    ),
    Scenario(
        "heart-disease",
        "patients of four real hospitals: heart disease from 13 features, of which some hospitals lack several",
        natural.sites(
            "heart-disease", "disease", task="classification", categorical=("cp", "restecg", "slope", "thal")
        ),
        clients=4,
        groups=1,
        defaults=Defaults(model="logistic", rounds=50, training=Training(lr=0.1, epochs=1, batch_size=32)),
    ),
    *_schools(),
    Scenario(
        "air",
        "hours of 12 stations in Beijing, urban or suburban: log PM2.5, trained on three years, tested on the fourth "
        "(regression)",
        natural.sites(
            "air",
            "log PM2.5",
            task="regression",
            categorical=("month", "hour"),
            group_of=lambda station: int(station in SUBURBAN),
            splits=(0.9, 0.1, 0.0),
            time="week",
        ),
        clients=12,
        samples=2000,
        groups=2,
        defaults=Defaults(rounds=50, training=Training(lr=0.05, epochs=1, batch_size=32)),
    ),
    Scenario(
        "landmine",
        "29 minefields, foliated or desert: mine or clutter from nine radar features (see metrics=auc)",
        natural.sites(
            "landmine",
            "mine",
            task="classification",
            group_of=lambda field: int(int(field.removeprefix("field-")) > FOLIATED),
            splits=(0.5, 0.1, 0.4),
        ),
        clients=29,
        groups=2,
        defaults=Defaults(model="logistic", rounds=50, training=Training(lr=0.1, epochs=1, batch_size=32)),
    ),
    Scenario(
        "digits-4",
        "digits from four origins, MNIST, USPS, optdigits and semeion, at 28×28: each group one of them",
        builders.by_site("digits-4"),
        samples=200,
        defaults=_DIGITS,
    ),
    Scenario(
        "watch",
        "real people with a six-axis watch: seven exercises from 3 s of signal, tested on the other arm",
        natural.people("watch"),
        clients=10,
        groups=1,
        defaults=Defaults(model="cnn-1d", rounds=50, training=Training(lr=0.1, epochs=3, batch_size=32)),
    ),
    Scenario(
        "xor",
        "federated XOR: each group linearly separable, both together not, for a linear model",
        builders.toy("xor"),
        samples=100,
        groups=2,
        defaults=_TOY,
    ),
    Scenario(
        "opposite",
        "opposite conditionals: the same points, the labels turned around in the second group",
        builders.toy("opposite"),
        samples=100,
        groups=2,
        defaults=_TOY,
    ),
    *flt_scenarios.scenarios(),
)
_SCENARIOS = {scenario.name: scenario for scenario in _OURS}
