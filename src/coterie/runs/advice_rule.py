"""From evidence to advice: one model, several, or models of the clients' own, and what gain to expect. Pure functions.

The constants were chosen on the federations 0 to 38 of `coterie reproduce advise-regret` and judged on others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from coterie.runs.diagnosis import Difference

Kind = Literal["one", "several", "personal", "local"]
Way = Literal["several", "personal", "local"]

SURE = 2.0
"""Standard errors that a gain must exceed."""
LEAST_GAIN = {"several": 1.0, "personal": 4.0, "local": 4.0}
"""Points that a way of sharing must be better than one model."""
SKEWED = 0.25
"""The label skew from which averaged training lags behind what one model could reach, so that any gain counts."""
STRONG_ALONE = 0.0
"""Points by which models of single clients must beat the common one for private heads to be advised, not Ditto."""
SPREAD = (0.4, 1.6)
"""The gain that was seen, divided by the gain of the closed form: the middle 80 % of the calibration."""
SLACK = 1.0
"""Points that the interval is wider on each side: what methods of equal worth differ by."""


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
    conflict: bool = False
    """Whether CFL's rule would split, where a few rounds were trained."""

    @property
    def unit(self) -> str:
        """What a gain is counted in."""
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
    gain: tuple[float, float]
    """Points over FedAvg to expect, in four of five cases."""
    confidence: Literal["sure", "likely", "open"]
    advice: str
    """In words."""

    def gain_words(self, unit: str) -> str:
        """The gain in words."""
        if self.method == "fedavg":
            return "none, this is FedAvg."
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
        interval = expected_gain(gain)
        sure = confidence(gain)
        for method, advice in _methods(way, evidence):
            found.append(Recommendation(way, method, interval, sure, advice))
    if evidence.conflict and way is None:
        text = "Several models, by cfl: what helps some clients harms others, and it finds out how many there should be."
        found.append(Recommendation("several", "cfl", (0.0, math.inf), "likely", text))
    found.append(_one(evidence, doubtful=way is not None))
    return found


def best_way(evidence: Evidence) -> Way | None:
    """The way of sharing that is surely better than one model, and best; None: one model."""
    better = {way: gain for way, gain in evidence.gains.items() if _is_better(way, gain, evidence)}
    return max(better, key=lambda way: better[way].mean) if better else None


def _is_better(way: Way, gain: Difference, evidence: Evidence) -> bool:
    if way == "several" and (evidence.k < 2 or evidence.k >= evidence.clients):
        return False
    skewed = not evidence.regression and evidence.skew >= SKEWED
    if way == "several" and skewed:
        return gain.mean > gain.error
    return gain.mean > max(LEAST_GAIN[way], SURE * gain.error)


def expected_gain(gain: Difference) -> tuple[float, float]:
    """The interval in which four of five gains over FedAvg fell, from the gain in closed form."""
    return SPREAD[0] * gain.mean - SLACK, SPREAD[1] * gain.mean + SLACK


def confidence(gain: Difference) -> Literal["sure", "likely", "open"]:
    """How clear a gain is."""
    z = gain.mean / gain.error if gain.error > 0 else math.inf
    return "sure" if z >= 2 * SURE else "likely" if z >= SURE else "open"


def _methods(way: Way, evidence: Evidence) -> list[tuple[str, str]]:
    """The methods of a way with what to say, the best first."""
    if way == "several":
        return [
            (f"ifca:k={evidence.k}", f"Several models: {evidence.k} clusters, by ifca, each client in the one it fits."),
            ("cfl", "Several models, by cfl, which finds out how many."),
        ]
    heads = ("fedper", "A model for each client: a common body with private heads (fedper).")
    ditto = ("ditto", "A model for each client, pulled to a common one (ditto).")
    alone = ("local", "A model for each client by itself (local): the others have little to add.")
    if way == "local":
        return [heads, alone]
    return [heads, ditto] if evidence.gains["local"].mean > STRONG_ALONE else [ditto, heads]


def _one(evidence: Evidence, *, doubtful: bool) -> Recommendation:
    best = max((gain.mean for gain in evidence.gains.values()), default=0.0)
    near = any(gain.mean > max(gain.error, 1.0) for gain in evidence.gains.values())
    sure: Literal["sure", "likely", "open"] = "open" if doubtful else "likely" if near else "sure"
    text = "One model for all (fedavg)."
    if near and best > 0:
        text += " Models of the clients' own may be a little better, not surely."
    return Recommendation("one", "fedavg", (0.0, 0.0), sure, text)
