"""The federations of the board in their strata: their sizes, how long methods train there, and what judges them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from coterie.data import find_scenario
from coterie.errors import ConfigError, did_you_mean

Stratum = Literal["labels", "inputs", "combined", "natural", "none", "drift"]
STRATA: dict[Stratum, str] = {
    "labels": "groups that differ in their labels",
    "inputs": "groups that differ in their inputs",
    "combined": "groups, and label skew or unequal sizes inside them",
    "natural": "natural federations, which nobody divided",
    "none": "federations without groups",
    "drift": "groups that exchange their labels while training",
}
HIGHER_IS_BETTER = {"accuracy": True, "auc": True, "rmse": False}


@dataclass(frozen=True)
class Declared:
    """What is known of the clients of a natural federation and could be taken for their groups: a column of a table."""

    file: str
    """In the data folder."""
    column: str
    client_column: str


@dataclass(frozen=True)
class BoardFederation:
    """A scenario with its sizes and budget."""

    name: str
    stratum: Stratum
    what: str
    """In a few words."""
    passes: float
    """The budget: passes over its training data that a client makes on average, seeding and checks included."""
    scenario: str = ""
    """Where it has another name than the federation."""
    metric: str = "accuracy"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Sizes, model, participation and local training where they differ from the scenario's, as options of `run`."""
    declared: Declared | None = None
    has_groups: bool = True
    """Whether the scenario knows its groups, or something is declared of the clients."""
    tuning_seeds: int = 1
    """Seeds that a tuning trial is the mean of: more where validation data is scarce and runs are cheap."""
    patience: int | None = 30
    """The plateau rule: a run ends after so many rounds without a better metric on validation data, and the best
    round's models stay. None: where data changes with time, all rounds are trained."""
    rounds: int = 2000
    """After these a run ends in any case."""
    from_round: int | None = None
    """Where data changes: the metric is the mean over the rounds from this one on, not that of the last round."""

    @property
    def higher_is_better(self) -> bool:
        return HIGHER_IS_BETTER[self.metric]

    @property
    def builds(self) -> str:
        """The scenario's name."""
        return self.scenario or self.name

    @property
    def rate(self) -> float:
        """The step size at which tuning begins."""
        return float(self.options.get("lr") or find_scenario(self.builds).defaults.training.lr)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"options": dict(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BoardFederation:
        """The federation from plain values."""
        declared = values.get("declared")
        return cls(**{**values, "declared": Declared(**declared) if declared else None})


_DIGITS = {"clients": 20, "samples": 60, "epochs": 1}
_SKEWED = {"clients": 20, "epochs": 1}
_IMAGES = {"clients": 20, "samples": 100, "model": "mlp:hidden=100", "epochs": 1}
_CNN = {"clients": 100, "samples": 100, "model": "cnn-cifar:width=8,hidden=32", "epochs": 1, "participation": 0.1}
_TABLE = {"model": "mlp:hidden=16", "epochs": 1}
_DRIFT = {"clients": 12, "samples": 60, "epochs": 1}
SMALL, LARGE, CNN = 150.0, 60.0, 20.0
"""Passes: of digits and tables, whose passes are cheap, of images of 28 × 28, and where a CNN trains."""


def _labels() -> Iterator[BoardFederation]:
    for shift, words in (("permuted", "4 permutations of the labels"), ("swapped", "4 groups, two labels swapped")):
        yield BoardFederation(f"digits-{shift}", "labels", words, SMALL, options=_DIGITS)
        for short, title in (("fashion", "clothing"), ("mnist", "28×28")):
            yield BoardFederation(f"{short}-{shift}", "labels", f"{words}, {title}", LARGE, options=_IMAGES)
    yield BoardFederation("digits:permuted(2)", "labels", "2 permutations of the labels", SMALL, options=_DIGITS)
    yield BoardFederation(
        "cifar-permuted", "labels", "4 permutations, small CNN, 10 of 100 clients a round", CNN, options=_CNN
    )


def _inputs() -> Iterator[BoardFederation]:
    yield BoardFederation("digits-rotated", "inputs", "4 rotations of the images", SMALL, options=_DIGITS)
    for short, title in (("fashion", "clothing"), ("mnist", "28×28")):
        yield BoardFederation(f"{short}-rotated", "inputs", f"4 rotations, {title}", LARGE, options=_IMAGES)
    for number, words in ((1, "5 groups, two classes each"), (2, "5 groups, three classes each, neighbours share one")):
        yield BoardFederation(f"flt-s{number}-digits", "inputs", words, SMALL, options=_SKEWED)
    yield BoardFederation("flt-s4-digits", "inputs", "5 groups of two classes, sizes by a power law", SMALL,
                          options={"clients": 40, "epochs": 1})  # fmt: skip
    yield BoardFederation("flt-s1-fashion", "inputs", "5 groups, two classes each, clothing", LARGE, options=_IMAGES)
    yield BoardFederation(
        "cifar-rotated", "inputs", "4 rotations, small CNN, 10 of 100 clients a round", CNN, options=_CNN
    )


def _combined() -> Iterator[BoardFederation]:
    for shift in ("swapped(4)", "permuted(4)", "rotated(4)"):
        for part in ("dirichlet(0.3)", "sizes(zipf)"):
            yield BoardFederation(f"digits:{shift}+{part}", "combined", f"{shift} with {part}", SMALL, options=_SKEWED)
    for shift in ("swapped(4)", "rotated(4)"):
        yield BoardFederation(
            f"fashion:{shift}+dirichlet(0.3)", "combined", f"{shift} with dirichlet(0.3), clothing", LARGE,
            options=_IMAGES,
        )  # fmt: skip


def _natural() -> Iterator[BoardFederation]:
    yield BoardFederation("heart-disease", "natural", "4 hospitals, 920 patients", SMALL, metric="auc",
                          options=_TABLE, has_groups=False, tuning_seeds=5)  # fmt: skip
    yield BoardFederation("hsb82", "natural", "30 schools in the USA, mathematics", SMALL, metric="rmse",
                          options={"clients": 30, "lr": 0.005, **_TABLE},
                          declared=Declared("schools/hsb82.csv", "sector", "school"), tuning_seeds=2)  # fmt: skip
    yield BoardFederation("exam", "natural", "30 schools in London, examination score", SMALL, metric="rmse",
                          options={"clients": 30, **_TABLE},
                          declared=Declared("schools/exam.csv", "schgend", "school"), tuning_seeds=2)  # fmt: skip
    yield BoardFederation("air", "natural", "12 stations in Beijing, tested on the last year", LARGE, metric="rmse")
    yield BoardFederation("landmine", "natural", "29 minefields, of two kinds of ground", SMALL, metric="auc",
                          tuning_seeds=2)  # fmt: skip
    yield BoardFederation("digits-4", "natural", "digits of four origins", LARGE, options={"samples": 100, "epochs": 1})
    yield BoardFederation("watch", "natural", "10 people, exercises from a watch", LARGE, options={"epochs": 1},
                          has_groups=False)  # fmt: skip
    yield BoardFederation("mnist-writers", "natural", "20 writers of digits", LARGE, has_groups=False,
                          options={"clients": 20, "model": "mlp:hidden=100", "epochs": 1})  # fmt: skip


def _without_groups() -> Iterator[BoardFederation]:
    for name, words, options in (
        ("digits-iid", "one distribution", _DIGITS),
        ("digits-dirichlet", "label shares by Dirichlet(0.3)", _SKEWED),
        ("digits:none+classes(2)", "two classes per client", _SKEWED),
        ("digits:none+dirichlet(1)+sizes(zipf)", "label shares by Dirichlet(1), sizes by Zipf", _SKEWED),
    ):
        yield BoardFederation(name, "none", words, SMALL, options=options, has_groups=False)
    for name, words in (("fashion-iid", "one distribution"), ("fashion-dirichlet", "label shares by Dirichlet(0.3)")):
        yield BoardFederation(name, "none", f"{words}, clothing", LARGE, options=_IMAGES, has_groups=False)


def _drifting() -> Iterator[BoardFederation]:
    for source, title in (("digits", "8×8"), ("mnist", "28×28")):
        for groups in (2, 3):
            yield BoardFederation(
                f"{source}-drift-{groups}", "drift", f"{groups} groups exchange their labels in round 31, {title}", 600,
                rounds=60, scenario=f"{source}-drift", options={**_DRIFT, "groups": groups}, has_groups=False,
                patience=None, from_round=31,
            )  # fmt: skip


FEDERATIONS: tuple[BoardFederation, ...] = tuple(
    sorted(
        (*_labels(), *_inputs(), *_combined(), *_natural(), *_without_groups(), *_drifting()),
        key=lambda entry: (entry.stratum == "drift", -entry.passes),
    )
)
"""In the order in which they are run: the cheap ones first, so that a stop leaves these complete."""
SUBSET = ("digits-permuted", "digits-rotated", "digits:swapped(4)+dirichlet(0.3)", "digits-iid")
"""Those that anyone can repeat at once: one of each kind, of data that scikit-learn brings."""
SUBSET_METHODS = ("fedavg", "local", "ifca", "cfl", "auto", "groups")


def find_federations(names: Sequence[str]) -> tuple[BoardFederation, ...]:
    """Federations of the board by name, in the board's order; all where none are named."""
    known = {federation.name: federation for federation in FEDERATIONS}
    for name in names:
        if name not in known:
            raise ConfigError(f"federation {name!r} is not on the board: {did_you_mean(name, known)}")
    return tuple(federation for federation in FEDERATIONS if not names or federation.name in names)
