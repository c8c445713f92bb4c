"""Paired differences between compared methods: how much one is over another, how sure that is, and by which test.

Methods meet on the same seeds and the same clients. A seed's difference is the mean over its clients of the
difference per client; with several seeds these are tested, so that the test speaks of new draws of the data and of
the training. With one seed only the clients can be tested, with a larger error for the training that they share
(`coterie_views.verdict`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.errors import ConfigError, did_you_mean
from coterie_views.verdict import interval, standard_error

Test = Literal["t", "wilcoxon"]
TESTS: tuple[Test, ...] = ("t", "wilcoxon")
Scores = Mapping[int, Mapping[str, float]]
"""A metric of one method by seed and client."""


@dataclass(frozen=True)
class Difference:
    """A method's metric minus the baseline's."""

    method: str
    baseline: str
    metric: str
    over: Literal["seeds", "clients"]
    """What the pairs are."""
    pairs: int
    mean: float
    low: float | None
    """Ends of the 95 % interval by Student's t; None with a single pair."""
    high: float | None
    p: float | None
    """Two-sided; None with a single pair."""
    p_holm: float | None
    """After Holm's correction for all methods that are tested against the baseline."""


def paired_differences(
    scores: Mapping[str, Scores], baseline: str, metric: str = "accuracy", test: Test = "t", shared: float = 0.0
) -> list[Difference]:
    """Every other method against the baseline, in order; methods that share no client with it are left out.

    `shared` enlarges the error where the pairs are clients, which are tested by Student's t.
    """
    found = []
    for method, own in scores.items():
        if method != baseline and (values := _pairs(own, scores[baseline])):
            over: Literal["seeds", "clients"] = "seeds" if len(values) > 1 else "clients"
            sample = [statistics.fmean(one) for one in values] if over == "seeds" else values[0]
            common = 0.0 if over == "seeds" else shared
            low, high = interval(sample, shared=common) or (None, None)
            p = p_value(sample, test if over == "seeds" else "t", common)
            found.append((method, over, len(sample), statistics.fmean(sample), low, high, p))
    corrected = holm([p for *_, p in found])
    return [
        Difference(method, baseline, metric, over, n, mean, low, high, p, adjusted)
        for (method, over, n, mean, low, high, p), adjusted in zip(found, corrected, strict=True)
    ]


def _pairs(own: Scores, other: Scores) -> list[list[float]]:
    """For each seed that both have, the differences of the clients that both have."""
    seeds = [seed for seed in own if seed in other]
    values = [
        [own[seed][client] - other[seed][client] for client in own[seed] if client in other[seed]] for seed in seeds
    ]
    return [one for one in values if one]


def p_value(sample: Sequence[float], test: Test = "t", shared: float = 0.0) -> float | None:
    """The two-sided p-value of "the differences are 0 in the mean" (t) or "are symmetric about 0" (Wilcoxon)."""
    if len(sample) < 2:
        return None
    if not any(sample):
        return 1.0
    from scipy.stats import t, wilcoxon

    if test == "wilcoxon":
        return float(wilcoxon(sample).pvalue)
    error = standard_error(sample, shared)
    return float(2 * t.sf(abs(statistics.fmean(sample)) / error, len(sample) - 1)) if error else 0.0


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction: the i-th smallest of m is multiplied by m − i + 1, made monotone, and cut at 1."""
    known = sorted((value, place) for place, value in enumerate(values) if value is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (value, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * value))
        corrected[place] = highest
    return corrected


def find_baseline(name: str, methods: Sequence[str]) -> str:
    """The method that is meant: by its whole text, or by its name where only one method has that."""
    short = [method for method in methods if method.partition(":")[0] == name]
    if name in methods or len(short) == 1:
        return name if name in methods else short[0]
    if short:
        raise ConfigError(f"baseline={name!r}: {' and '.join(short)} have that name: give one with its options")
    raise ConfigError(f"baseline={name!r}: not among the methods: {did_you_mean(name, methods)}")


def check_test(name: str) -> Test:
    """The test of that name."""
    for known in TESTS:
        if name == known:
            return known
    raise ConfigError(f"test={name!r}: expected one of {', '.join(TESTS)}")
