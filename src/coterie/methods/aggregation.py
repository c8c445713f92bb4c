"""How updates become one: the rule that all methods average by, and what it does about clients that lie.

The rule is one option of a run, not of a method. By default ("auto") it is "agreement" on a network, the mean of the
updates that do not pull against the others (`clustering.agreement`), and in a simulation, where nobody is hostile, the
weighted mean, formed without any single update. Under every rule an update far longer than usual is left out, and a
claimed number of samples counts up to ten times the median number. A lower `clip` or another rule stops more, and
changes what honest clients send more often.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.clustering import cosine_matrix, robust
from coterie.clustering.agreement import copied, counted
from coterie.engines.base import Engine
from coterie.errors import ConfigError, did_you_mean
from coterie.tasks import Reply

RULES = ("auto", "mean", "agreement", "median", "trimmed-mean", "multi-krum", "geometric-median")
MEANS = ("mean", "agreement")
"""Rules by which what counts is added up."""
AMOUNTS = {"trimmed-mean": 0.2, "multi-krum": 0.2}
"""Rules that expect a share of hostile clients, and the share where none is given."""
CLIP = "auto"
WEIGHT_CAP = 10.0
FAR, FAR_OF_FEW = 8.0, 30.0
"""An update of more than so many times the usual length is left out, unless `clip` lets it be longer; of fewer than
FEW clients one may have converged and another not, which is no fault."""
FEW = 4
MOST_COMPARED = 2**28
"""Numbers in all clients' updates of a round, beyond which "auto" does not keep them to compare them: a gigabyte."""
FIRST = 10
"""Replies that wait on a network until a median can be told."""


class WeightedSum:
    """A weighted sum of replies in float64, added in the order of arrival: O(d) memory for any number of replies."""

    def __init__(self, size: int) -> None:
        self.total = torch.zeros(size, dtype=torch.float64)
        self.weight = 0.0
        self.count = 0
        self.max_norm = 0.0
        self.loss = 0.0

    def add(self, reply: Reply, weight: float) -> None:
        """Add one reply's vector, and note the reply."""
        assert reply.vector is not None
        self.total.add_(reply.vector, alpha=weight)
        self.note(reply, weight)

    def note(self, reply: Reply, weight: float) -> None:
        """Count a reply whose vector was added to the total elsewhere."""
        self.weight += weight
        self.count += 1
        # Norms are not told where they would say more than a sum with noise does.
        self.max_norm = max(self.max_norm, reply.norm) if "norm" in reply.values else math.nan
        self.loss += weight * float(reply.values["loss"])

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


class Limit(NamedTuple):
    """What is done about long updates: from `bound` on they are cut to it, above `out` they are left out."""

    bound: float
    out: float

    def applied(self, reply: Reply) -> Reply | None:
        """The reply as it counts; None where it does not."""
        if reply.norm <= self.bound:
            return reply
        return None if reply.norm > self.out else shortened(reply, self.bound)


@dataclass(frozen=True)
class Aggregation:
    """The rule that updates are averaged by, with its limits.

    `rule` is one of RULES; `amount` the hostile clients that it expects, a share below 1 or a number. `clip` times the
    usual norm is how long an update may be, `longest` the same as a plain number; with `lenient` it may be FAR_OF_FEW
    times as long among fewer than FEW. `weight_cap` times the median number of samples is the most that a client may
    weigh. None switches a limit off.
    """

    rule: str = "mean"
    amount: float = 0.0
    clip: float | None = FAR
    longest: float | None = None
    weight_cap: float | None = WEIGHT_CAP
    lenient: bool = False

    @classmethod
    def parse(cls, aggregate: str = "auto", clip: str = CLIP, weight_cap: float = WEIGHT_CAP) -> Aggregation:
        """The rule as options write it: "trimmed-mean:0.2", clip "auto", "3x", "1.5" or "none", weight_cap 0 (none)."""
        name, _, text = aggregate.partition(":")
        if name not in RULES:
            raise ConfigError(f"aggregate={aggregate!r}: {did_you_mean(name, RULES)}")
        if text and name not in AMOUNTS:
            raise ConfigError(f"aggregate={aggregate!r}: {name} takes no number, write aggregate={name!r}")
        amount = _number(text, f"aggregate={aggregate!r}", "such as 0.2 or 3") if text else AMOUNTS.get(name, 0.0)
        most = 0.5 if amount < 1 else math.inf
        if name in AMOUNTS and (not 0 <= amount < most or (amount >= 1 and amount != int(amount))):
            raise ConfigError(f"aggregate={aggregate!r}: expected a share below 0.5, or a whole number of clients")
        if weight_cap < 0 or 0 < weight_cap < 1:
            raise ConfigError(f"weight_cap={weight_cap}: expected 1 or more times the median, or 0 for no limit")
        multiple, longest = _clip(str(clip))
        return cls(name, amount, multiple, longest, weight_cap or None, str(clip) == CLIP)

    def on(self, engine: Engine, sums_only: bool = False) -> Aggregation:
        """The rule for an engine: "auto" is agreement where clients may be hostile and updates can be compared."""
        if self.rule != "auto":
            return self
        fits = len(engine.clients) * engine.layout.size <= MOST_COMPARED
        compares = fits and not (engine.repeatable or engine.secure or sums_only)
        return replace(self, rule="agreement" if compares else "mean")

    @property
    def clips(self) -> bool:
        """Whether norms are bounded."""
        return self.clip is not None or self.longest is not None

    @property
    def compares(self) -> bool:
        """Whether updates that pull against the others are cut or left out."""
        return self.rule == "agreement"

    def limits(self, norms: Mapping[int, Sequence[float]]) -> dict[int, Limit]:
        """How long an update may be in each group, from the norms in all of them."""
        fixed = math.inf if self.longest is None else self.longest
        limits = {}
        for (group, own), usual in zip(norms.items(), robust.usual_norms(list(norms.values())), strict=True):
            if self.clip is None:
                limits[group] = Limit(fixed, math.inf)
                continue
            clip = FAR_OF_FEW if self.lenient and len(own) < FEW else self.clip
            limits[group] = Limit(min(clip * usual, fixed), max(clip, FAR) * usual)
        return limits

    def clipped(
        self, parts: Sequence[Part], weights: Sequence[float], trained: int, trusted: Collection[str] = ()
    ) -> list[Part]:
        """The parts as they count: those too long for their group, or against it, are cut or left out.

        `weights` are those of the parts in their groups' means; the first `trained` numbers of a vector are compared.
        Clients that are `trusted` may pull harder against the others.
        """
        if not (self.clips or self.compares):
            return list(parts)
        limits = self.limits(norms_by_group(parts))
        after = [limits[group].applied(reply) for group, reply in parts]
        if self.compares:
            shares = self._shares(parts, after, weights, trained, trusted)
            after = [None if reply is None else _part_of(reply, shares[reply.client]) for reply in after]
        return [Part(part.group, reply) for part, reply in zip(parts, after, strict=True) if reply is not None]

    def _shares(
        self,
        parts: Sequence[Part],
        after: Sequence[Reply | None],
        weights: Sequence[float],
        trained: int,
        trusted: Collection[str],
    ) -> dict[str, float]:
        """How much of each client's update counts: its first part is compared with those of its group.

        What a client sends beside it (FedCUAU's layers of clusters) goes to ever smaller groups, in which an honest
        client is soon the odd one.
        """
        first: dict[str, int] = {}
        for i, part in enumerate(parts):
            first.setdefault(part.reply.client, i)
        shares = dict.fromkeys(first, 0.0)
        for group in sorted({parts[i].group for i in first.values()}):
            rows = [i for i in first.values() if parts[i].group == group and after[i] is not None]
            own = [reply for i in rows if (reply := after[i]) is not None]
            pulls = np.array([weights[i] * reply.norm for i, reply in zip(rows, own, strict=True)])
            vectors = torch.stack([_vector(reply)[:trained] for reply in own]) if own else torch.zeros(0, 0)
            losses = np.array([float(reply.values.get("loss", np.inf)) for reply in own])
            cosines = cosine_matrix(vectors)
            known = np.array([reply.client in trusted for reply in own], dtype=bool)
            found = np.where(copied(cosines, vectors.shape[1]), 0.0, counted(cosines, pulls, losses, known))
            shares |= {reply.client: float(share) for reply, share in zip(own, found, strict=True)}
        return shares

    def counted(self, replies: Sequence[Reply]) -> list[Reply]:
        """The replies that are in the sums of their groups, whole or cut: those that are not far too long."""
        if not self.clips:
            return list(replies)
        limits = self.limits(norms_by_group(Part(reply.group, reply) for reply in replies))
        return [reply for reply in replies if reply.norm <= limits[reply.group].out]

    def combine(self, replies: Sequence[Reply], weights: Sequence[float], size: int) -> WeightedSum:
        """The replies' vectors as one by the rule, as a sum whose mean it is; norms are taken as they are."""
        total = WeightedSum(size)
        if self.rule in MEANS or len(replies) < 2:
            for reply, weight in zip(replies, weights, strict=True):
                total.add(reply, weight)
            return total
        for reply, weight in zip(replies, weights, strict=True):
            total.note(reply, weight)
        total.total = self.center(torch.stack([_vector(reply) for reply in replies]), weights) * total.weight
        return total

    def center(self, rows: Tensor, weights: Sequence[float]) -> Tensor:
        """The rows `(n, d)` as one vector `(d,)` by the rule. Median and trimmed mean count every client alike."""
        count = len(rows)
        expected = int(self.amount) if self.amount >= 1 else math.floor(self.amount * count + 1e-9)
        if self.rule == "median":
            return robust.coordinate_median(rows)
        if self.rule == "trimmed-mean":
            return robust.trimmed_mean(rows, expected)
        if self.rule == "multi-krum":
            return robust.multi_krum(rows, expected, weights)
        if self.rule == "geometric-median":
            return robust.geometric_median(rows, weights)
        return robust.weighted_mean(rows, weights)


class Streamed:
    """Parts as they arrive, passed on in order at once, except those that look too long: these wait for the end.

    What is too long is known only when all have come. Until then the median of those that came is what there is: the
    first few wait for it, and a part waits whose norm is above half of what that median would allow.
    """

    def __init__(self, rule: Aggregation, take: Callable[[Part], None]) -> None:
        self.rule, self.take = rule, take
        self._first: list[Part] = []
        self._waiting: list[Part] = []
        self._norms: dict[int, list[float]] = {}

    def add(self, part: Part) -> None:
        """Take one part."""
        self._norms.setdefault(part.group, []).append(part.reply.norm)
        if sum(map(len, self._norms.values())) <= FIRST:
            self._first.append(part)
            return
        self._release()
        self._pass_on(part)

    def finish(self) -> list[str]:
        """Pass on what waited, as far as it counts; whose parts were cut or left out."""
        self._release()
        limits = self.rule.limits(self._norms)
        cut = []
        for group, reply in self._waiting:
            after = limits[group].applied(reply)
            if after is not reply:
                cut.append(reply.client)
            if after is not None:
                self.take(Part(group, after))
        self._waiting = []
        return cut

    def _release(self) -> None:
        first, self._first = self._first, []
        for part in first:
            self._pass_on(part)

    def _pass_on(self, part: Part) -> None:
        if part.reply.norm > self.rule.limits(self._norms)[part.group].bound / 2:
            self._waiting.append(part)
        else:
            self.take(part)


def norms_by_group(parts: Iterable[Part]) -> dict[int, list[float]]:
    """The norms of all parts by their groups."""
    norms: dict[int, list[float]] = {}
    for group, reply in parts:
        norms.setdefault(group, []).append(reply.norm)
    return norms


def followed(
    parts: Iterable[Part], counted: Sequence[Part], weights: Sequence[float], trained: int
) -> dict[str, float]:
    """By client, the cosine of its part with what its group's model is moved by: the mean of what counts there.

    `weights` are those of the counted parts; the first `trained` numbers of a vector are compared.
    """
    sums: dict[int, Tensor] = {}
    for (group, reply), weight in zip(counted, weights, strict=True):
        own = _vector(reply)[:trained].double() * weight
        sums[group] = sums[group] + own if group in sums else own
    cosines = {}
    for group, reply in parts:
        own = _vector(reply)[:trained].double()
        length = float(own.norm() * sums[group].norm()) if group in sums else 0.0
        if 0 < length < math.inf:
            cosines[reply.client] = float(own @ sums[group]) / length
    return cosines


def _part_of(reply: Reply, share: float) -> Reply | None:
    """So much of a reply; None for nothing of it."""
    return shortened(reply, share * reply.norm) if share > 0 else None


def shortened(reply: Reply, bound: float) -> Reply:
    """The reply with its vector and norm scaled to the bound, where it is longer."""
    if reply.norm <= bound:
        return reply
    scale = bound / reply.norm
    vector = None if reply.vector is None else (reply.vector.double() * scale).to(reply.vector.dtype)
    return replace(reply, vector=vector, values={**reply.values, "norm": bound})


def capped_weights(samples: Mapping[str, int], most: float | None) -> dict[str, float]:
    """Every client's number of samples, at most `most` times the median of them."""
    if most is None:
        return {client: float(count) for client, count in samples.items()}
    kept = robust.capped(list(samples.values()), most)
    return dict(zip(samples, kept.tolist(), strict=True))


def _vector(reply: Reply) -> Tensor:
    assert reply.vector is not None
    return reply.vector


def _clip(text: str) -> tuple[float | None, float | None]:
    """The multiple of the median, or the plain number, that a clip option stands for."""
    if text.lower() in {"none", "0", "0x"}:
        return None, None
    if text == CLIP:
        return FAR, None
    what, expected = f"clip={text!r}", "such as '3x' (times the usual norm), 1.5 (a norm), or 'none'"
    if re.fullmatch(r".*x", text):
        multiple = _number(text[:-1], what, expected)
        if multiple < 1:
            raise ConfigError(f"{what}: expected 1 or more times the usual norm")
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
