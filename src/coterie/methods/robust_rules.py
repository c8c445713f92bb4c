"""Robust rules as users write them, and the one that a stated number of hostile clients asks for.

A rule, after steps with plus signs between: `krum(2)`, `nnm+trimmed-mean(2)`, `bucketing(2)+geometric-median`. Where
`nnm` has no number of its own it expects as many hostile clients as the rule.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coterie.clustering import robust
from coterie.errors import ConfigError, did_you_mean

HOSTILE, RADIUS, SIZE = "hostile clients: 2 or 10%", "length: 1.5", "bucket's size from 2: 2"
"""What the number in a term's brackets is."""
RULES: dict[str, str] = {
    "mean": "",
    "median": "",
    "trimmed-mean": HOSTILE,
    "krum": HOSTILE,
    "multi-krum": HOSTILE,
    "geometric-median": "",
    "centred-clip": RADIUS,
}
STEPS = {"nnm": HOSTILE, "bucketing": SIZE}
"""What may stand before a rule."""
EXPECTING = frozenset(name for name, takes in (RULES | STEPS).items() if takes == HOSTILE)
KAPPA: dict[str, Callable[[int, int], float]] = {
    "median": lambda n, f: (n - 1) // 2 / (n - f - (n - 1) // 2),
    "geometric-median": lambda n, f: 4 * ((n - f) / (n - 2 * f)) ** 2,
    "trimmed-mean": lambda n, f: f / (n - 2 * f),
    "multi-krum": lambda n, f: 6 * (n - f) / (n - 2 * f - 1) if 2 * f + 2 < n else math.inf,
    "krum": lambda n, f: 6 * (n - f) / (n - 2 * f - 1) if 2 * f + 2 < n else math.inf,
}
"""The proven κ of each rule with n updates, f < n/2 of them hostile (see `coterie.clustering.robust`)."""
_TERM = re.compile(r"([a-z-]+)(?:\(([^()]*)\))?")


class Amount(NamedTuple):
    """A number, or a share of the updates."""

    value: float
    percent: bool = False

    @classmethod
    def parse(cls, text: str) -> Amount | None:
        """The number in "2", "1.5" or "10%"; None where there is no finite number of at least 0."""
        digits = text.strip().removesuffix("%")
        try:
            value = float(digits)
        except ValueError:
            return None
        return cls(value, text.strip().endswith("%")) if 0 <= value < math.inf else None

    def of(self, count: int) -> int:
        """The whole number of `count` that is meant: a share is rounded up."""
        return math.ceil(self.value * count / 100 - 1e-9) if self.percent else int(self.value)

    @property
    def counts_clients(self) -> bool:
        """Whether it is a whole number, or a share below a half."""
        return self.value < 50 if self.percent else self.value == int(self.value)


class Term(NamedTuple):
    """A step or a rule, with the number that it takes."""

    name: str
    amount: Amount | None = None


@dataclass(frozen=True)
class RobustRule:
    """Steps and the rule after them."""

    steps: tuple[Term, ...]
    rule: Term

    @classmethod
    def parse(cls, text: str) -> RobustRule:
        """The rule in a text; a misspelling is a ConfigError."""
        parts = text.replace(" ", "").split("+")
        last = _term(text, parts[-1], RULES)
        steps = tuple(
            _term(text, part, STEPS, last.amount if RULES[last.name] == HOSTILE else None) for part in parts[:-1]
        )
        return cls(steps, last)

    def center(self, rows: Tensor, order: npt.NDArray[np.integer]) -> Tensor:
        """The rows `(n, d)` as one vector `(d,)`; `order` is a random order of them."""
        count = len(rows)
        for name, amount in self.steps:
            assert amount is not None
            if name == "nnm":
                rows = robust.nearest_neighbour_mixing(rows, min(amount.of(count), (count - 1) // 2))
            else:
                rows = robust.bucketing(rows, int(amount.value), order)
        name, amount = self.rule
        if name == "centred-clip":
            assert amount is not None
            return robust.centred_clip(rows, amount.value)
        if amount is not None:
            expecting = {"trimmed-mean": robust.trimmed_mean, "krum": robust.krum, "multi-krum": robust.multi_krum}
            return expecting[name](rows, amount.of(count))
        plain = {"median": robust.coordinate_median, "geometric-median": robust.geometric_median, "mean": robust.mean}
        return plain[name](rows)

    def kappa(self, count: int) -> float | None:
        """The proven κ with as many of `count` updates hostile as are expected; None where there is none."""
        hostile = self.expected(count)
        if self.rule.name not in KAPPA or not 0 < 2 * hostile < count or any(name != "nnm" for name, _ in self.steps):
            return None
        kappa = KAPPA[self.rule.name](count, hostile)
        for _ in self.steps:
            kappa = 8 * hostile / (count - hostile) * (kappa + 1)
        return kappa if kappa < math.inf else None

    def expected(self, count: int) -> int:
        """How many of `count` updates it expects to be hostile."""
        amounts = [amount.of(count) for name, amount in (*self.steps, self.rule) if amount and name in EXPECTING]
        return max(amounts, default=0)


def rule_against(expect: str, clients: int) -> str:
    """The rule of least κ for a number of hostile clients ("2") or a share of all ("10%"): no rule has a lower one.

    All of them may be in one cluster, so the number stays as it is in every cluster.
    """
    amount = Amount.parse(expect)
    if amount is None or not amount.counts_clients:
        raise ConfigError(f"expect_hostile={expect!r}: expected a number of clients such as 2, or a share such as 10%")
    hostile = amount.of(clients)
    if 2 * hostile >= clients:
        raise ConfigError(f"expect_hostile={expect!r} of {clients} clients: no rule stands half of them, expect fewer")
    return f"trimmed-mean({hostile})" if hostile else "mean"


def _term(text: str, part: str, known: dict[str, str], default: Amount | None = None) -> Term:
    found = _TERM.fullmatch(part)
    name = found[1] if found else part
    if found is None or name not in known:
        other = "a step comes before a rule, as in nnm+trimmed-mean(2)" if name in STEPS else did_you_mean(name, known)
        raise ConfigError(f"aggregate={text!r}: {part!r}: {other}")
    takes, given = known[name], found[2]
    if not takes:
        if given is not None:
            raise ConfigError(f"aggregate={text!r}: {name} takes no number, write {name!r}")
        return Term(name)
    amount = Amount.parse(given) if given else default
    if not _fits(amount, takes):
        raise ConfigError(f"aggregate={text!r}: {part!r}: expected in brackets a {takes}")
    return Term(name, amount)


def _fits(amount: Amount | None, takes: str) -> bool:
    """Whether a number is there and is what a term takes."""
    if amount is None:
        return False
    if takes == HOSTILE:
        return amount.counts_clients
    whole = amount.value == int(amount.value) and amount.value >= 2
    return not amount.percent and (amount.value > 0 if takes == RADIUS else whole)
