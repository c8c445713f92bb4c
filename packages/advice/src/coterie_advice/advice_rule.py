"""From evidence to advice: one model, several, or models of the clients' own, and what gain to expect. Pure functions.

The constants were chosen on the federations 0 to 38 of `coterie reproduce advise-regret`. On 1000 to 1025 that rule
missed its bar of regret by little; FEWER and LEAST_GAIN_UNTRAINED (8 before) were set by its misses there, and the rule
was then judged once on 1026 to 1051 (docs/choosing.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["one", "several", "personal", "local"]
Way = Literal["several", "personal", "local"]
Confidence = Literal["sure", "likely", "open"]

DOUBT = 0.025
"""The p-value, by a one-sided t-test over clients, from which on a gain is not sure."""
CLEAR = 0.001
"""The p-value up to which the evidence is called clear."""
LEAST_GAIN: dict[Way, float] = {"several": 1.0, "personal": 3.0, "local": 3.0}
"""Points that a way of sharing must be better than one model."""
SKEWED = 0.25
"""The label skew from which averaged training lags behind what one model could reach, so that a gain of
several models counts from one standard error on."""
FEW_EPOCHS = 50.0
"""Passes over its own data in a whole run, below which a client's own model is not trained to its end."""
LEAST_GAIN_UNTRAINED = 5.0
"""Points that models of the clients' own must then promise."""
HEADS_FROM = -2.0
"""What models of single clients gain over the common one, from which on private heads do better than Ditto."""
AS_GOOD = 1.0
"""Points by which several models may be behind models of the clients' own and are still preferred: they are fewer."""
FEWER = 1 / 3
"""Models per client up to which they count as fewer."""
CLEARLY_BETTER = 2.0
"""Points by which models of single clients must beat those that are pulled to the common one, to be advised."""
SPREAD = (0.4, 1.5)
SLACK = (1.0, 3.0)
"""The gain over FedAvg that was seen lies between 0.4 times the gain in closed form, less 1, and 1.5 times it, more 3,
in about four of five federations."""


@dataclass(frozen=True)
class Difference:
    """A mean difference over clients, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Difference:
        known = np.array([value for value in values if math.isfinite(value)])
        if len(known) < 2:
            return cls(float(known.mean()) if len(known) else math.nan, math.inf)
        return cls(float(known.mean()), float(known.std(ddof=1) / math.sqrt(len(known))))


@dataclass(frozen=True)
class Evidence:
    """What the probe saw; scores are points of accuracy or, of a regression, of the variance explained."""

    clients: int
    samples: int
    """Training samples per client (median)."""
    rounds: int
    """Rounds of the planned run."""
    regression: bool
    one: float | None
    """Held-out score of one model, solved in closed form; None where a few rounds were trained instead."""
    gains: dict[Way, Difference]
    """What the other ways gain over one model, on average over clients."""
    k: int
    """The number of models that clients choose among where several are best."""
    skew: float
    """How far clients' label mixes differ, from 0 to 1; of a regression the share of variance between clients."""
    compared: int
    """Clients that were compared."""
    epochs: float = math.inf
    """Passes over its own data that a client makes in the planned run."""
    conflict: bool = False
    """Whether CFL's rule would split, where a few rounds were trained."""

    @property
    def unit(self) -> str:
        """What a gain is counted in."""
        if self.one is None:
            return "% of the validation loss"
        return "points of the variance explained" if self.regression else "points of accuracy"

    def words(self) -> list[str]:
        """The evidence in sentences."""
        lines = [f"{self.clients} clients with {self.samples} training samples (median); {self._skew_words()}"]
        if self.one is not None:
            share = "of the variance" if self.regression else "accuracy"
            lines.append(
                f"solved in closed form on {self.compared} clients, one model reaches {self.one:.1f} % {share} on "
                "held-out data; against it"
            )
        names = {
            "several": f"{self.k} models that clients choose among" if self.k > 1 else "several models",
            "personal": "a model for each, pulled to the common one",
            "local": "a model for each by itself",
        }
        for way, gain in self.gains.items():
            if way == "several" and self.k == 1:
                lines.append("  several models gain nothing: no number of clusters serves better")
            else:
                lines.append(f"  {names[way]}: {gain.mean:+.1f} ± {gain.error:.1f} {self.unit}")
        if self.conflict:
            lines.append("a step that helps some clients harms others on labels that both hold: no single model fits")
        return lines

    def _skew_words(self) -> str:
        if self.regression:
            return f"{self.skew:.0%} of the target's variance lies between clients"
        return f"label mixes differ for {self.skew:.0%} of the samples beyond chance"


@dataclass(frozen=True)
class Recommendation:
    """One way to go."""

    kind: Kind
    method: str
    gain: tuple[float, float] | None
    """Points over FedAvg to expect, in about four of five cases; None where the probe cannot say."""
    confidence: Confidence
    advice: str
    """In words."""

    def gain_words(self, unit: str) -> str:
        """The gain in words."""
        if self.method == "fedavg":
            return "none, this is FedAvg."
        if self.gain is None:
            return "not to be told from a few rounds."
        return f"{self.gain[0]:+.1f} to {self.gain[1]:+.1f} {unit}."

    @property
    def confidence_words(self) -> str:
        return {
            "sure": "The evidence is clear.",
            "likely": "It is likely, not sure: compare with fedavg.",
            "open": "The evidence is thin: compare with fedavg before you rely on it.",
        }[self.confidence]


def recommend(evidence: Evidence) -> list[Recommendation]:
    """What to run, the best first: where a method cannot run, the next takes its place; FedAvg comes last."""
    way = best_way(evidence)
    found = []
    if way is not None:
        gain = evidence.gains[way]
        interval = None if evidence.one is None else expected_gain(gain, 100 - evidence.one)
        sure = confidence(gain, evidence.compared)
        for method, advice in _methods(way, evidence):
            found.append(Recommendation(way, method, interval, sure, advice))
    if evidence.conflict and way is None:
        text = (
            "Several models, by cfl: what helps some clients harms others, and it finds out how many there should be."
        )
        found.append(Recommendation("several", "cfl", None, "likely", text))
    found.append(_one(evidence, doubtful=way is not None))
    return found


def best_way(evidence: Evidence) -> Way | None:
    """The way of sharing that is surely better than one model, and best; None: one model."""
    better = {way: gain.mean for way, gain in evidence.gains.items() if _is_better(way, gain, evidence)}
    if not better:
        return None
    others = max((gain for way, gain in better.items() if way != "several"), default=-math.inf)
    margin = -AS_GOOD if evidence.k <= FEWER * evidence.clients else AS_GOOD
    if better.get("several", -math.inf) >= others + margin:
        return "several"
    if "local" in better and better["local"] >= better.get("personal", -math.inf) + CLEARLY_BETTER:
        return "local"
    return "personal" if "personal" in better else "several"


def _is_better(way: Way, gain: Difference, evidence: Evidence) -> bool:
    if way == "several":
        if not 2 <= evidence.k <= evidence.clients / 2:
            return False
        if not evidence.regression and evidence.skew >= SKEWED:
            return gain.mean > gain.error
    least = LEAST_GAIN[way]
    if way != "several" and evidence.epochs < FEW_EPOCHS:
        least = LEAST_GAIN_UNTRAINED
    return gain.mean > least and doubt(gain, evidence.compared) <= DOUBT


def doubt(gain: Difference, clients: int) -> float:
    """The p-value of "no gain", by a one-sided t-test over clients."""
    from scipy.special import stdtr

    if clients < 2 or not math.isfinite(gain.error):
        return 1.0
    if gain.error == 0:
        return 0.0 if gain.mean > 0 else 1.0
    return float(stdtr(clients - 1, -gain.mean / gain.error))


def expected_gain(gain: Difference, most: float = math.inf) -> tuple[float, float]:
    """The interval of gains over FedAvg to expect, from the gain in closed form; no more than there is to gain."""
    return SPREAD[0] * gain.mean - SLACK[0], min(SPREAD[1] * gain.mean + SLACK[1], most)


def confidence(gain: Difference, clients: int) -> Confidence:
    """How clear a gain is."""
    p = doubt(gain, clients)
    return "sure" if p <= CLEAR else "likely" if p <= DOUBT else "open"


def _methods(way: Way, evidence: Evidence) -> list[tuple[str, str]]:
    """The methods of a way with what to say, the best first."""
    if way == "several":
        return [
            (
                f"ifca:k={evidence.k}",
                f"Several models: {evidence.k} clusters, by ifca, each client in the one it fits.",
            ),
            ("cfl", "Several models, by cfl, which finds out how many."),
        ]
    heads = ("fedper", "A model for each client: a common body with private heads (fedper).")
    ditto = ("ditto", "A model for each client, pulled to a common one (ditto).")
    alone = ("local", "A model for each client by itself (local): the others have little to add.")
    if way == "local":
        return [heads, alone]
    by_itself = evidence.gains.get("local")
    return [heads, ditto] if by_itself is not None and by_itself.mean > HEADS_FROM else [ditto, heads]


def _one(evidence: Evidence, *, doubtful: bool) -> Recommendation:
    best = max((gain.mean for gain in evidence.gains.values()), default=0.0)
    near = any(gain.mean > max(gain.error, 1.0) for gain in evidence.gains.values())
    sure: Confidence = "open" if doubtful else "likely" if near else "sure"
    text = "One model for all (fedavg)."
    if near and best > 0:
        text += " Models of the clients' own may be a little better, not surely."
    return Recommendation("one", "fedavg", (0.0, 0.0), sure, text)
