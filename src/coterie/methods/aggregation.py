"""How updates become one: the weighted mean of the papers or, where the user asks for it, a robust rule or a limit.

The rule is one option of a run, not of a method. Nothing here changes a mean unless the user chose it: `aggregate` or
`expect_hostile` another rule, `clip` a limit on the length of an update, `weight_cap` one on the weight of a client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.robust import weighted_mean
from coterie.errors import ConfigError
from coterie.methods.robust_rules import RobustRule, rule_against
from coterie.randomness import numpy_generator
from coterie.tasks import Reply
from coterie.trainers.base import PIECE


class WeightedSum:
    """A weighted sum of replies in float64, added in the order of arrival: O(d) memory for any number of replies."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._total: Tensor | None = None
        self.weight = 0.0
        self.count = 0
        self.max_norm = 0.0
        self.loss = 0.0

    @property
    def total(self) -> Tensor:
        """The sum so far `(d,)`."""
        if self._total is None:
            self._total = torch.zeros(self.size, dtype=torch.float64)
        return self._total

    @total.setter
    def total(self, total: Tensor) -> None:
        self._total = total

    def add_total(self, total: Tensor) -> None:
        """Add a float64 sum `(d,)` that was formed elsewhere; the first is kept as it is, not copied."""
        if self._total is None:
            self._total = total
        else:
            self._total += total

    def add(self, reply: Reply, weight: float) -> None:
        """Add one reply's vector, and note the reply."""
        self.total.add_(vector_of(reply), alpha=weight)
        self.note(reply, weight)

    def note(self, reply: Reply, weight: float) -> None:
        """Count a reply whose vector was added to the total elsewhere."""
        self.weight += weight
        self.count += 1
        # Norms are left out where they would say more than a sum with noise does.
        self.max_norm = max(self.max_norm, reply.norm) if "norm" in reply.values else math.nan
        self.loss += weight * float(reply.values.get("loss", math.nan))

    def mean_norm(self, count: int) -> float:
        """The norm of the first `count` numbers of the mean."""
        parts = self.total[:count].split(PIECE)
        return math.hypot(*[float((part / self.weight if self.weight else part).norm()) for part in parts])

    def mean(self) -> Tensor:
        """The weighted mean vector, float64 `(d,)`, a new tensor; zero when nothing was counted."""
        return self.total / self.weight if self.weight else self.total.clone()

    def mean_loss(self) -> float | None:
        """The weighted mean of the replies' losses."""
        return self.loss / self.weight if self.weight else None


class Part(NamedTuple):
    """A reply, or a part of its vector, and the sum it goes to."""

    group: int
    reply: Reply


@dataclass(frozen=True)
class Aggregation:
    """The rule that updates are averaged by, with its limits.

    `rule` is written as in `coterie.methods.robust_rules`; all but the mean count every client alike. `clip` times the
    median norm of its cluster's updates (of two the lower) is how long an update may be, `longest` the same as a plain
    number. `weight_cap` times the median number of samples is the most that a client may weigh. None: no limit.
    `clients` is how many there are in all. Random orders are a function of `seed` and `round`.
    """

    rule: str = "mean"
    clip: float | None = None
    longest: float | None = None
    weight_cap: float | None = None
    clients: int = 0
    seed: int = 0
    round: int = 0

    @classmethod
    def parse(
        cls,
        aggregate: str = "mean",
        clip: str = "none",
        weight_cap: float = 0.0,
        *,
        expect_hostile: str | int | None = None,
        clients: int = 0,
        seed: int = 0,
    ) -> Aggregation:
        """The rule as options write it: "nnm+trimmed-mean(2)", clip "3x", "1.5" or "none", weight_cap 3 or 0 (none).

        `expect_hostile`, "2" or "10%" of the `clients`, chooses the rule.
        """
        RobustRule.parse(aggregate)
        if expect_hostile is not None:
            if aggregate != "mean":
                raise ConfigError(f"aggregate={aggregate!r} and expect_hostile={expect_hostile!r}: give one of the two")
            aggregate = rule_against(str(expect_hostile), clients)
        if weight_cap < 0 or 0 < weight_cap < 1:
            raise ConfigError(f"weight_cap={weight_cap}: expected 1 or more times the median, or 0 for no limit")
        if weight_cap and aggregate != "mean":
            raise ConfigError(f"weight_cap={weight_cap}: {aggregate} counts every client alike, leave weight_cap out")
        multiple, longest = _clip(str(clip))
        return cls(aggregate.replace(" ", ""), multiple, longest, weight_cap or None, clients, seed)

    @property
    def hostile(self) -> int:
        """How many of the clients the rule expects to be hostile; what forms clusters leaves out as many."""
        return RobustRule.parse(self.rule).expected(self.clients)

    @property
    def clips(self) -> bool:
        """Whether norms are bounded."""
        return self.clip is not None or self.longest is not None

    @property
    def is_plain_mean(self) -> bool:
        """Whether sums are enough, so that no single update is needed."""
        return self.rule == "mean" and not self.clips

    def describe(self) -> str:
        """The rule and its limits in words; empty for the plain weighted mean."""
        parts = [] if self.rule == "mean" else [self._rule_in_words()]
        if self.clip is not None:
            parts.append(f"updates longer than {self.clip:g} times the median of their cluster are shortened to that")
        if self.longest is not None:
            parts.append(f"updates longer than {self.longest:g} are shortened to that")
        if self.weight_cap is not None:
            parts.append(f"no client weighs more than {self.weight_cap:g} times the median number of samples")
        return "; ".join(parts)

    def _rule_in_words(self) -> str:
        """The rule, its published bound and what it costs."""
        rule = RobustRule.parse(self.rule)
        kappa = rule.kappa(self.clients)
        words = [self.rule]
        if kappa is not None:
            near = f"within √{kappa:.3g} times the honest updates' standard deviation of their mean"
            too_few = f"in a cluster of {2 * rule.expected(self.clients)} or fewer no rule has a proof"
            words.append(f"{near} while all {self.clients} share a cluster, {too_few}")
        words.append("every client counts alike, and honest updates far from the others count less")
        return ", ".join(words)

    def bounds(self, norms: Mapping[int, Sequence[float]]) -> dict[int, float]:
        """How long an update may be in each group, from the norms in it; infinity without a limit."""
        fixed = math.inf if self.longest is None else self.longest
        if self.clip is None:
            return dict.fromkeys(norms, fixed)
        usual = {group: median_low(own) for group, own in norms.items()}
        # Where most do not move, nothing is known of how long an update should be.
        return {group: min(self.clip * norm, fixed) if norm > 0 else fixed for group, norm in usual.items()}

    def within_limits(self, parts: Sequence[Part]) -> list[Part]:
        """The parts as they count: those too long for their group are shortened."""
        if not self.clips:
            return list(parts)
        norms: dict[int, list[float]] = {}
        for group, reply in parts:
            norms.setdefault(group, []).append(reply.norm)
        bounds = self.bounds(norms)
        return [Part(group, shortened(reply, bounds[group])) for group, reply in parts]

    def sum_by_rule(self, replies: Sequence[Reply], weights: Sequence[float], size: int) -> WeightedSum:
        """The replies' vectors as one by the rule, as a sum whose mean it is; norms are taken as they are."""
        total = WeightedSum(size)
        if self.rule == "mean" or len(replies) < 2:
            for reply, weight in zip(replies, weights, strict=True):
                total.add(reply, weight)
            return total
        for reply, weight in zip(replies, weights, strict=True):
            total.note(reply, weight)
        total.total = self.center(torch.stack([vector_of(reply) for reply in replies]), weights) * total.weight
        return total

    def center(self, rows: Tensor, weights: Sequence[float]) -> Tensor:
        """The rows `(n, d)` as one vector `(d,)` by the rule; only the mean looks at the weights."""
        if self.rule == "mean":
            return weighted_mean(rows, weights)
        order = numpy_generator(self.seed, "bucketing", self.round).permutation(len(rows))
        return RobustRule.parse(self.rule).center(rows, order)


def shortened(reply: Reply, bound: float) -> Reply:
    """The reply with its vector and norm scaled to the bound, where it is longer."""
    if reply.norm <= bound:
        return reply
    scale = bound / reply.norm
    vector = None if reply.vector is None else (reply.vector.double() * scale).to(reply.vector.dtype)
    return replace(reply, vector=vector, values={**reply.values, "norm": bound})


def capped_weights(samples: Mapping[str, int], most: float | None) -> dict[str, float]:
    """Every client's number of samples, at most `most` times the median of them."""
    limit = math.inf if most is None or not samples else most * float(np.median(list(samples.values())))
    return {client: min(float(count), limit) for client, count in samples.items()}


def vector_of(reply: Reply) -> Tensor:
    """The vector of a reply that has one."""
    assert reply.vector is not None
    return reply.vector


def _clip(text: str) -> tuple[float | None, float | None]:
    """The multiple of the median, or the plain number, that a clip option stands for."""
    if text.lower() in {"none", "0", "0x"}:
        return None, None
    what, expected = f"clip={text!r}", "such as '3x' (times the median norm), 1.5 (a norm), or 'none'"
    if text.endswith("x"):
        multiple = _number(text[:-1], what, expected)
        if multiple < 1:
            raise ConfigError(f"{what}: expected 1 or more times the median norm")
        return multiple, None
    return None, _number(text, what, expected)


def _number(text: str, what: str, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (np.isfinite(value) and value > 0):
        raise ConfigError(f"{what}: expected a number {expected}")
    return value
