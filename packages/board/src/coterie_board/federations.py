"""The federations of the board: their sizes, how many rounds a method has there, and by which metric it is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from coterie.data import find_scenario
from coterie.errors import ConfigError, did_you_mean

Kind = Literal["natural", "groups", "plain"]
KINDS: dict[Kind, str] = {
    "natural": "natural federations",
    "groups": "federations made with hidden groups",
    "plain": "federations made without groups",
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
    """The scenario's name."""
    kind: Kind
    what: str
    """In a few words."""
    rounds: int
    metric: str = "accuracy"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Sizes, model and local training where they differ from the scenario's, as options of `coterie.run`."""
    declared: Declared | None = None
    byte_factor: int = 2
    """The budget of bytes, over what the reference sends in all rounds; a method stops after the round that reaches it.
    """
    tuning_seeds: int = 1
    """Seeds that a tuning trial is the mean of: more where validation data is scarce and runs are cheap."""
    from_round: int | None = None
    """Where data changes: the metric is the mean over the rounds from this one on, not that of the last round."""

    @property
    def higher_is_better(self) -> bool:
        return HIGHER_IS_BETTER[self.metric]

    @property
    def rate(self) -> float:
        """The step size that those tried are multiples of."""
        return float(self.options.get("lr") or find_scenario(self.name).defaults.training.lr)

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"options": dict(self.options)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> BoardFederation:
        """The federation from plain values."""
        declared = values.get("declared")
        return cls(**{**values, "declared": Declared(**declared) if declared else None})


_SMALL = {"clients": 20, "samples": 60}
_IMAGES = {"clients": 20, "samples": 100, "model": "mlp:hidden=100", "epochs": 1}
_TABLE = {"model": "mlp:hidden=16"}
FEDERATIONS: tuple[BoardFederation, ...] = (
    BoardFederation("heart-disease", "natural", "4 hospitals, 920 patients", 50, "auc", _TABLE, tuning_seeds=5),
    BoardFederation(
        "hsb82", "natural", "30 schools in the USA, mathematics", 50, "rmse", {"clients": 30, "lr": 0.005, **_TABLE},
        Declared("schools/hsb82.csv", "sector", "school"), tuning_seeds=2,
    ),
    BoardFederation(
        "exam", "natural", "30 schools in London, examination score", 50, "rmse", {"clients": 30, **_TABLE},
        Declared("schools/exam.csv", "schgend", "school"), tuning_seeds=2,
    ),
    BoardFederation("watch", "natural", "10 people, exercises from a watch", 30, options={"epochs": 1}),
    BoardFederation(
        "mnist-writers", "natural", "20 writers of digits", 20,
        options={"clients": 20, "model": "mlp:hidden=100", "epochs": 1},
    ),
    BoardFederation("digits-iid", "plain", "one distribution", 30, options=_SMALL),
    BoardFederation("digits-dirichlet", "plain", "label shares by Dirichlet(0.3)", 30, options={"clients": 20}),
    BoardFederation("digits-permuted", "groups", "4 permutations of the labels", 30, options=_SMALL),
    BoardFederation("digits-swapped", "groups", "4 groups, each with two labels swapped", 30, options=_SMALL),
    BoardFederation("digits-rotated", "groups", "4 rotations of the images", 30, options=_SMALL),
    BoardFederation("flt-s2-digits", "groups", "5 families of classes that overlap", 30, options={"clients": 20}),
    BoardFederation(
        "digits-drift", "groups", "2 groups that exchange their labels in round 31", 45, from_round=31, byte_factor=6,
        options={"clients": 12, "samples": 60},
    ),
    BoardFederation("fashion-permuted", "groups", "4 permutations of the labels, clothing", 20, options=_IMAGES),
    BoardFederation("mnist-rotated", "groups", "4 rotations of the images, 28×28", 20, options=_IMAGES),
)  # fmt: skip
"""In the order in which they are run: the natural ones first, so that a stop leaves these complete."""


SUBSET = tuple(federation.name for federation in FEDERATIONS if "digits" in federation.name)
"""Those that anyone can run at once: scikit-learn brings their data."""


def find_federations(names: Sequence[str]) -> tuple[BoardFederation, ...]:
    """Federations of the board by name, in the board's order; all where none are named."""
    known = {federation.name: federation for federation in FEDERATIONS}
    for name in names:
        if name not in known:
            raise ConfigError(f"federation {name!r} is not on the board: {did_you_mean(name, known)}")
    return tuple(federation for federation in FEDERATIONS if not names or federation.name in names)
