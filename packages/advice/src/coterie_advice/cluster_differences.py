"""What kind of difference is between two clusters: of the labels' names, the label mix, the inputs, or the rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from coterie_advice.input_shift import Separation
from coterie_advice.label_matching import LabelMatch, in_words

LEAST_GAP = 0.02
"""The share of samples (or of the variance) that another cluster's model must lose to matter."""
SURE = 3.0
"""Standard errors that a loss must exceed."""
RESTORED = 0.5
"""The share of what another cluster's model loses that renaming labels must bring back to be the reason.

Chosen with the runs of `label_matching.CLEAR`: turned images reach 0.37 at the most, renamed labels seldom below 0.5.
"""
LEARNED = 0.2
"""How far a model must have come from the most common answer (0) to always right (1); below it every sort of confusion
was seen with the same data."""
APART = 0.65
"""The AUC from which inputs are said to differ, if it is no chance: with the same data the same images gave up to 0.53,
turned ones from 0.85 on."""
NO_CHANCE = 0.01
"""The largest p-value of a difference of inputs or of label mixes."""
LEAST_MIX = 0.1
"""The share of samples with other labels from which label mixes are said to differ, if it is no chance."""

Kind = Literal["alike", "labels", "label mix", "inputs", "rule", "undecided"]


@dataclass(frozen=True)
class Crossing:
    """Clients of one cluster under another's model, on data that no model was trained on.

    Scores are accuracies, or for a regression shares of the variance that are explained.
    """

    own: float
    """Score of their own cluster's model."""
    other: float
    """Score of the other cluster's."""
    error: float
    """Standard error of the difference of the two."""
    constant: float = 0.0
    """Score of always giving the most common answer."""
    renamed: float | None = None
    """Score of the other cluster's model after its labels are renamed by the match; None where there are no labels."""
    shared_gap: float | None = None
    """What it loses on labels that its own clients hold too; None where there are no such labels."""

    @property
    def gap(self) -> float:
        """What the other cluster's model loses."""
        return self.own - self.other

    @property
    def learned(self) -> float:
        """How far the own model has come from the most common answer, 0, to always right, 1."""
        return (self.own - self.constant) / (1 - self.constant) if self.constant < 1 else 1.0


@dataclass(frozen=True)
class Mix:
    """How the label mixes of two clusters differ."""

    distance: float
    """Total variation: the share of samples that would need another label."""
    p: float
    """Chance of such a table of counts if the mixes were the same (chi-squared)."""
    largest: list[tuple[int, float, float]] = field(default_factory=list)
    """The labels that differ most, with their shares in the first cluster and in the second."""

    @property
    def differs(self) -> bool:
        return self.distance >= LEAST_MIX and self.p <= NO_CHANCE


@dataclass(frozen=True)
class PairDifference:
    """Two clusters: what each loses under the other's model, and why."""

    first: int
    second: int
    first_clients: Crossing
    """The first cluster's clients under the second's model."""
    second_clients: Crossing
    match: LabelMatch | None = None
    inputs: Separation | None = None
    """How far inputs with the same labels can be told apart."""
    mix: Mix | None = None
    features: list[str] = field(default_factory=list)
    """What differs most in the inputs of tables, in words."""

    @property
    def kind(self) -> Kind:
        """What the difference is."""
        sides = (self.first_clients, self.second_clients)
        if any(side.learned < LEARNED for side in sides):
            return "undecided"
        # Over both sides, because one of the models may be the better one for all.
        gap, error = sum(side.gap for side in sides) / 2, math.hypot(*(side.error for side in sides)) / 2
        if gap < LEAST_GAP or gap <= SURE * error:
            return "alike"
        if all(side.shared_gap is not None and side.shared_gap < LEAST_GAP for side in sides):
            return "label mix"
        if self.match and self.match.moved and self.restored >= RESTORED:
            return "labels"
        if all(side.shared_gap is None for side in sides) and self.match:
            return "label mix"
        if self.inputs_differ:
            return "inputs"
        return "undecided" if self.match and (self.match.moved or self.match.doubtful) else "rule"

    @property
    def restored(self) -> float:
        """The share of what the other's models lose that the renaming of labels brings back."""
        sides = [side for side in (self.first_clients, self.second_clients) if side.renamed is not None]
        lost = sum(side.gap for side in sides)
        return sum((side.renamed or 0.0) - side.other for side in sides) / lost if lost > 0 else 0.0

    @property
    def inputs_differ(self) -> bool:
        return self.inputs is not None and self.inputs.auc >= APART and self.inputs.p <= NO_CHANCE

    def words(self, names: Sequence[object] = (), *, regression: bool = False) -> list[str]:
        """The difference in sentences: what it is, then the numbers that say so."""
        sides = (self.first_clients, self.second_clients)
        own, other = (sum(values) / 2 for values in zip(*((side.own, side.other) for side in sides), strict=True))
        scored = "of the variance explained" if regression else "of the samples right"
        numbers = f"own model {own:.0%} {scored}, the other's {other:.0%}"
        if self.match and self.match.moved and any(side.renamed is not None for side in sides):
            renamed = sum(side.renamed or 0.0 for side in sides) / 2
            numbers += f", {renamed:.0%} after renaming labels"
        lines = [f"Clusters {self.first} and {self.second}: {self._verdict(names)}", f"  {numbers}"]
        if self.inputs is not None:
            can = "are told apart" if self.inputs_differ else "cannot be told apart"
            of = "inputs" if regression else "inputs of the same labels"
            lines.append(f"  {of} {can} by a linear classifier (AUC {self.inputs.auc:.2f})")
        if self.features and self.inputs_differ:
            lines.append(f"  what differs most: {'; '.join(self.features)}")
        if self.mix is not None and self.mix.differs:
            shares = [f"{names[a] if names else a} {p:.0%} and {q:.0%}" for a, p, q in self.mix.largest]
            lines.append(f"  the label mix differs for {self.mix.distance:.0%} of the samples: {', '.join(shares)}")
        return lines

    def _verdict(self, names: Sequence[object]) -> str:
        kind = self.kind
        if kind == "labels":
            assert self.match is not None
            text = f"the labels differ: {in_words(self.match.moved, names)}"
            doubtful = in_words(self.match.doubtful, names)
            text += f"; perhaps also {doubtful}" if doubtful else ""
            return text + (", and so do the inputs." if self.inputs_differ else ".")
        weak = [
            str(number)
            for number, side in ((self.first, self.first_clients), (self.second, self.second_clients))
            if side.learned < LEARNED
        ]
        if weak:
            return (
                f"not to be told by their models: that of cluster {' and of '.join(weak)} is hardly better for its own "
                "clients than always giving the most common answer."
            )
        return {
            "alike": "hardly a difference: the model of either serves the clients of both.",
            "label mix": "they hold other labels; on labels that both hold, if any, either model serves both.",
            "inputs": "a difference of the inputs, not of the labels: no renaming of labels makes up for it.",
            "rule": "the same kind of inputs has other labels, and not by a renaming of the labels.",
            "undecided": "not to be told: the models point to a renaming of labels, but not clearly. Train longer.",
        }[kind]


def label_mix(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], most: int = 3) -> Mix:
    """Compare how often each label occurs, from counts `(classes,)` of two clusters."""
    from scipy.stats import chi2_contingency

    shares = [counts / max(int(counts.sum()), 1) for counts in (first, second)]
    distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
    table = np.stack([first, second])[:, (first + second) > 0]
    p = float(chi2_contingency(table).pvalue) if table.shape[1] > 1 and table.sum(1).all() else math.nan
    order = np.argsort(-np.abs(shares[0] - shares[1]), kind="stable")[:most]
    return Mix(distance, p, [(int(a), float(shares[0][a]), float(shares[1][a])) for a in order])
