"""Named federations: a data source, who holds what, and what makes the hidden groups differ."""

from __future__ import annotations

from dataclasses import replace

from coterie.data import builders, drifting, flt_scenarios, natural
from coterie.data.scenario import Defaults, Scenario
from coterie.errors import ConfigError, did_you_mean
from coterie.plugins import load_as, offered
from coterie.trainers.base import Training

GROUP = "coterie.scenarios"
"""The group of entry points in which packages offer scenarios."""
_SCENARIOS: dict[str, Scenario] = {}


def register(scenario: Scenario) -> None:
    """Make a scenario known by its name in this process; a package offers it to all by an entry point."""
    _SCENARIOS[scenario.name] = scenario


def find_scenario(name: str) -> Scenario:
    """The scenario of that name, or a ConfigError with a suggestion; packages that offer others stay unloaded."""
    if name in _SCENARIOS:
        return _SCENARIOS[name]
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


SHIFTS = {
    "iid": "every client draws from the same distribution",
    "permuted": "each group has its own permutation of the labels",
    "swapped": "each group has two labels swapped",
    "rotated": "each group's images are turned by 0, 90, 180, 270 degrees",
}
_DIGITS = Defaults(rounds=100, training=Training(lr=0.1, epochs=3, batch_size=32))
_MNIST = Defaults(rounds=100, training=Training(lr=0.1, epochs=3, batch_size=32))
_CIFAR = Defaults(model="cnn-cifar", rounds=150, training=Training(lr=0.05, epochs=3, batch_size=100))


def _shifted(short: str, title: str, source: str, shifts: tuple[str, ...], standard: Scenario) -> None:
    for shift in shifts:
        groups = 1 if shift == "iid" else standard.groups
        make = builders.shifted(source, shift)
        register(
            replace(standard, name=f"{short}-{shift}", summary=f"{title}: {SHIFTS[shift]}", make=make, groups=groups)
        )


_blank = Scenario("", "", builders.shifted("digits", "iid"))
_shifted(
    "digits", "scikit-learn digits (8×8)", "digits", ("iid", "permuted", "swapped", "rotated"),
    replace(_blank, defaults=_DIGITS),
)  # fmt: skip
_shifted(
    "mnist", "MNIST", "mnist", ("iid", "permuted", "swapped", "rotated"),
    replace(_blank, samples=500, defaults=_MNIST),
)  # fmt: skip
for _short, _title, _source, _samples in (
    ("digits", "scikit-learn digits (8×8)", "digits", None),
    ("mnist", "MNIST", "mnist", 500),
):
    register(
        Scenario(
            f"{_short}-drift",
            f"{_title}: label permutations that groups exchange from round {drifting.EXCHANGE} on, take back from "
            f"{drifting.RETURN}, and a new group from {drifting.NEW_GROUP}",
            drifting.drifting(_source),
            clients=12,
            samples=_samples,
            groups=2,
            defaults=Defaults(rounds=120, training=Training(lr=0.1, epochs=3, batch_size=32)),
        )
    )
_shifted(
    "fashion",
    "Fashion-MNIST",
    "fashion-mnist",
    ("iid", "permuted", "rotated"),
    replace(_blank, samples=500, defaults=_MNIST),
)
_shifted(
    "cifar", "CIFAR-10", "cifar10", ("permuted", "swapped", "rotated"),
    replace(_blank, samples=2000, defaults=_CIFAR),
)  # fmt: skip

for _short, _title, _source, _defaults in (
    ("digits", "scikit-learn digits (8×8)", "digits", _DIGITS),
    ("mnist", "MNIST", "mnist", _MNIST),
    ("fashion", "Fashion-MNIST", "fashion-mnist", _MNIST),
    ("cifar", "CIFAR-10", "cifar10", _CIFAR),
):
    _full_size = 20 if _short == "digits" else 100
    register(
        Scenario(
            f"{_short}-dirichlet",
            f"{_title}: label skew by Dirichlet(0.3), no groups",
            builders.dirichlet(_source, 0.3),
            groups=1,
            defaults=_defaults,
        )
    )
    register(
        Scenario(
            f"{_short}-dirichlet-quarters",
            f"{_title}: a quarter of the clients each with Dirichlet α = 1000, 1, 0.5, 0.1",
            builders.dirichlet_quarters(_source),
            clients=_full_size,
            defaults=_defaults,
        )
    )
    register(
        Scenario(
            f"{_short}-halves",
            f"{_title}: classes 0-4 and 5-9 with different clients; one model can fit both (congruent)",
            builders.class_sets(_source, lambda groups: builders.even_class_sets(10, groups)),
            samples=None if _short == "digits" else 500,
            groups=2,
            defaults=_defaults,
        )
    )

register(
    Scenario(
        "mnist-writers",
        "MNIST by its real writers (QMNIST): a natural federation without known groups",
        builders.by_writer("mnist-writers"),
        clients=200,
        groups=1,
        defaults=_MNIST,
    )
)
register(
    Scenario(
        "femnist",
        "LEAF FEMNIST by its real writers",
        builders.by_writer("femnist"),
        clients=200,
        groups=1,
        defaults=replace(_MNIST, model="cnn-leaf"),
    )
)
register(
    Scenario(
        "agnews-topics",
        "AG-News: next-word prediction, each group one topic",
        builders.news_topics,
        defaults=Defaults(
            model="lstm:embedding=32,hidden=64", rounds=60, training=Training(lr=3.0, epochs=1, batch_size=16)
        ),
    )
)
register(
    Scenario(
        "shakespeare-speakers",
        "Shakespeare's plays: next-character prediction, each client one speaker",
        builders.speakers,
        groups=1,
        defaults=Defaults(model="lstm", rounds=60, training=Training(lr=1.0, epochs=1, batch_size=16)),
    )
)
register(
    Scenario(
        "linear-mixture",
        "synthetic linear regressions, each group its own weights (IFCA's theory setting)",
        builders.linear_mixture,
        clients=100,
        samples=100,
        groups=2,
        defaults=Defaults(model="linear", rounds=300, training=Training(lr=0.1, steps=1, batch_size=None)),
    )
)
register(
    Scenario(
        "heart-disease",
        "patients of four real hospitals: heart disease from 13 features, of which some hospitals lack several",
        natural.sites(
            "heart-disease", "disease", task="classification", categorical=("cp", "restecg", "slope", "thal")
        ),
        clients=4,
        groups=1,
        defaults=Defaults(model="logistic", rounds=50, training=Training(lr=0.1, epochs=1, batch_size=32)),
    )
)
_PUPILS = Defaults(model="linear", rounds=50, training=Training(lr=0.05, epochs=1, batch_size=32))
for _name, _label, _schools, _drop, _summary in (
    ("hsb82", "mAch", 100, ("rownames", "school"), "pupils of real schools in the USA: mathematics achievement"),
    ("exam", "normexam", 50, ("rownames", "school", "student"), "pupils of real schools in London: examination score"),
    (
        "chem97",
        "score",
        100,
        ("rownames", "school", "student", "lea", "gcsecnt"),
        "pupils of real schools in Britain: chemistry score",
    ),
):
    register(
        Scenario(
            _name,
            f"{_summary} (regression)",
            natural.sites(_name, _label, task="regression", drop=_drop),
            clients=_schools,
            groups=1,
            defaults=_PUPILS,
        )
    )
register(
    Scenario(
        "watch",
        "real people with a six-axis watch: seven exercises from 3 s of signal, tested on the other arm",
        natural.people("watch"),
        clients=10,
        groups=1,
        defaults=Defaults(model="cnn-1d", rounds=50, training=Training(lr=0.1, epochs=3, batch_size=32)),
    )
)
_TOY = Defaults(model="logistic", rounds=50, training=Training(lr=0.1, epochs=1, batch_size=None))
register(
    Scenario(
        "xor",
        "federated XOR: each group linearly separable, both together not, for a linear model",
        builders.toy("xor"),
        samples=100,
        groups=2,
        defaults=_TOY,
    )
)
register(
    Scenario(
        "opposite",
        "opposite conditionals: the same points, the labels turned around in the second group",
        builders.toy("opposite"),
        samples=100,
        groups=2,
        defaults=_TOY,
    )
)

for _scenario in flt_scenarios.SCENARIOS:
    register(_scenario)
