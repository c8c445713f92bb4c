"""When a CFL cluster should be split, and how: pure functions of what its members measured on halves of their data.

A cluster is checked at a few growing ages, at θ̄, the mean of its recent models. Every member trains from θ̄ on two
halves of its data, each on its own (`a` and `b`), and every loss is judged on the half that was not trained on.

* *Do the members differ?* A permutation test: are the two halves of one client more alike than halves of different
  clients (`p_value`)?
* *Who goes with whom?* Clients are placed by products of `a`-halves with `b`-halves, in which sampling noise has mean
  zero; directions weaker than that noise are dropped, and a split that cuts through a group is refused (`find_sides`).
* *Is it a conflict?* The step of one side must raise the loss of the other side's samples of a label that both hold
  (`cfl_harm`): clients that agree on what a label looks like can only help each other there, whatever their label
  proportions, once a constant is added to the outputs. And much must be left to gain apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.clustering import half_vectors, many_halves
from coterie.clustering.half_vectors import Bools, Floats, Ints, reachable_p_value, unit_gram
from coterie.clustering.many_halves import Rows, unit_rows
from coterie.methods.cfl_harm import (
    LEAST_SHARED,
    SUGGESTED,
    conflict_p_value,
    gain_of,
    harm_of,
    is_conflict,
)
from coterie.methods.cfl_likeness import MANY, by_products, by_vectors, laid_end_to_end
from coterie.snapshot import saved

# The constants were chosen by hand from the evidence that checks gave on federations drawn like those of the recipe
# `cfl-grid`, none of which it judges: those that find sides on 160 federations, POSSIBLE, PROMISING, SQUARED and FEW
# on runs of 8401 to 8700. Those of harm are in `cfl_harm`.
FIRST_CHECK = 5
"""Rounds before the first check: the mean of fewer models is still mostly the start."""
GAP, GROWTH = 4, 1.3
"""The next check is GAP rounds later, or at GROWTH times the age: ten checks in the first hundred rounds."""
POOLED = 3
"""Checks whose similarities are averaged: with one, noisy clients are misplaced; older models say less."""
KEPT = POOLED
"""Records that a cluster keeps."""
SIGNIFICANCE = 0.001
"""The largest p-value that counts as a difference: a run makes some ten checks for every cluster."""
SLACK = 1.5
"""The p-value may be so many times the smallest that is possible: other matchings come close."""
FEWEST = 6
"""From so many clients on two equal groups can bring the p-value below 3 %."""
DEPTH = 3
"""Splits of splits that one check may make: up to eight clusters at once."""
POSSIBLE = 0.2
"""The largest p-value of a difference with which a split is judged at all."""
PROMISING = 0.01
"""The largest p-value of a conflict that is waited for, where not all have answered."""
SQUARED = 0.2
"""The part of the fastest progress that counts where losses are squared errors, which fall by so much at first."""
FEW = 8
"""A cluster of up to so many is judged whatever the p-value: one that differs from five cannot bring it below a
sixth."""


def next_check(age: int) -> int:
    """The age of the first check, for age 0, or of the one after a check at `age`."""
    return FIRST_CHECK if age < FIRST_CHECK else max(age + GAP, math.ceil(GROWTH * age))


def allowance(rounds: int, participation: float) -> float:
    """How many checks (training passes per member) may have been made after so many rounds.

    It keeps the extra training of a run of 100 rounds or more within 15 % at full participation and 25 % below. In
    shorter runs the 1.5 checks weigh more: at participation 0.3 and 60 rounds 26 % on average, at most 37 %, was
    measured.
    """
    share = (0.15 if participation >= 1 else 0.25) * participation
    return max(1.5 + (share - 0.015) * rounds, share * rounds)


Table = npt.NDArray[Any]
"""Pooled cosines (P, 2M, 2M) or, of very many members, pooled vectors (2M, w)."""


class Probe(NamedTuple):
    """What the members measured at one model. M members."""

    age: float
    """The mean age of the models whose mean is θ̄."""
    clients: tuple[str, ...]
    weights: Floats
    """(M,) positive; their scale does not matter."""
    gram: Floats
    """(P, 2M, 2M): inner products of the half-updates a_1 … a_M, b_1 … b_M; first of the whole vectors, then of the
    parts that belong to single outputs. Empty where there are `vectors`."""
    whole: Floats
    """(M,) loss of the cluster's model, with an output offset for each client."""
    vectors: Rows | None = None
    """(2M, w): of more than MANY members, the half-updates themselves or sketches of them."""


@saved
class Record:
    """What is kept of a check for the later ones."""

    age: float
    clients: tuple[str, ...]
    whole: Floats
    """(M,) losses of the cluster's model."""
    cosines: Floats
    """(P, 2M, 2M) cosines of all half-updates, as in `Probe.gram`."""
    progress: float
    """Fall of the loss per round since the check before; NaN at the first."""
    fastest: float
    """The largest progress up to here; NaN at the first."""
    vectors: Rows | None = None
    """(2M, w) `Probe.vectors` with unit length, where these are kept in place of the cosines."""

    def p_value(self) -> float:
        """Of "one distribution for all", from this check alone."""
        if self.vectors is None:
            return half_vectors.p_value(self.cosines)
        return many_halves.p_value(many_halves.tested_directions(self.vectors))


def best_scale(losses: npt.ArrayLike, weights: npt.ArrayLike) -> Floats:
    """The column of `losses: (M, scales)` with the lowest weighted mean; NaN rows do not vote. Returns (M,)."""
    table, p = np.asarray(losses, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    known = np.isfinite(table).all(axis=1)
    if not known.any():
        return table[:, 0]
    means = p[known] @ table[known]
    return table[:, int(means.argmin())]


def pooled(records: Sequence[Record], clients: Sequence[str]) -> Floats:
    """Mean cosines (P, 2M, 2M) of the clients' half-updates over several checks; 0 for pairs that no check has seen.

    They are the inner products of the half-updates of all the checks laid end to end, so that the noise of one check
    averages out, though every product is of updates made at one model.
    """
    parts = len(records[-1].cosines)
    total = np.zeros((parts, 2 * len(clients), 2 * len(clients)))
    count = np.zeros_like(total[0])
    place = {client: i for i, client in enumerate(clients)}
    for record in records:
        if len(record.cosines) != parts:
            continue
        rows = np.array([i for i, c in enumerate(record.clients) if c in place], dtype=np.int64)
        here = np.array([place[c] for c in record.clients if c in place], dtype=np.int64)
        theirs = np.concatenate([rows, rows + len(record.clients)])
        mine = np.concatenate([here, here + len(clients)])
        total[:, mine[:, None], mine] += record.cosines[:, theirs[:, None], theirs]
        count[np.ix_(mine, mine)] += 1
    return np.asarray(np.divide(total, count, out=np.zeros_like(total), where=count > 0))


def pooled_vectors(records: Sequence[Record], clients: Sequence[str]) -> Rows:
    """The same for very many clients: vectors (2M, w) whose products are such means, but for the error of a sketch.

    A pair of clients that not all checks have seen together is less alike here than its mean cosine says.
    """
    kept = [(record.clients, record.vectors) for record in records if record.vectors is not None]
    return laid_end_to_end(kept, clients)


def last_p_value(records: Sequence[Record]) -> float:
    """The smaller of both p-values of the last check's clients, over the last checks together."""
    last = records[-POOLED:]
    clients = last[-1].clients
    if last[-1].vectors is None:
        table = pooled(last, clients)
        own = half_vectors.p_value(table)
        return own if own <= SIGNIFICANCE else min(own, half_vectors.group_p_value(table[0]))
    tested = many_halves.tested_directions(pooled_vectors(last, clients))
    own = many_halves.p_value(tested)
    return own if own <= SIGNIFICANCE else min(own, many_halves.group_p_value(tested))


def passed_on(record: Record, clients: Sequence[str]) -> Record:
    """What a child with these clients keeps of its parent's check: likenesses; its losses begin anew with its model."""
    place = {client: i for i, client in enumerate(record.clients)}
    known = tuple(client for client in clients if client in place)
    rows = np.array([place[client] for client in known], dtype=np.int64)
    both = np.concatenate([rows, rows + len(record.clients)])
    unknown = np.full(len(known), math.nan)
    if record.vectors is None:
        return Record(record.age, known, unknown, record.cosines[:, both[:, None], both], math.nan, math.nan)
    vectors = record.vectors[both]
    if len(known) > MANY:
        return Record(record.age, known, unknown, record.cosines, math.nan, math.nan, vectors)
    cosines = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    return Record(record.age, known, unknown, cosines[None], math.nan, math.nan)


@saved
class Evidence:
    """What a check says for and against a split; losses per sample, differences as shares of the loss."""

    age: float
    """The mean age of the models that were averaged."""
    loss: float
    """The cluster's loss, with an output offset for each client."""
    progress: float
    """Fall of the loss per round since the check before."""
    fastest: float
    """The largest progress so far."""
    p_value: float
    """Of `p_value`, the test of one distribution for all; over the last checks together."""
    group_p_value: float
    """Of `group_p_value`, its like for groups; not asked where `p_value` is small enough."""
    gain: float
    """What the sides' own steps gain in a round, in parts of the fastest progress so far. NaN if not asked."""
    conflict: float
    """The p-value of "neither side's step harms the other", over labels that both hold. NaN if not asked."""
    harm: float
    """That harm, in parts of what the sides' own steps gain; the smaller of both sides."""
    shared: float
    """The part of the samples whose labels both sides hold; the smaller of both sides."""
    separation: float
    """sqrt((1 − α_cross_max)/2) of the two sides, eq. 36."""
    noise: float
    """γ̂, the median noise of the clients' updates."""


@saved
class Fork:
    """A split that a check considers: of all members (`name` is empty) or of a side of another fork.

    The sides of a fork named x are named x0 and x1.
    """

    name: str
    sides: tuple[tuple[str, ...], tuple[str, ...]]
    evidence: Evidence


def look(probe: Probe, records: Sequence[Record]) -> tuple[Record, Evidence, list[Fork]]:
    """The first part of a check: what to keep, the evidence so far, and the forks that are worth judging.

    A fork is worth judging if the clients differ and the cut is clear. The forks come from the top down; those below
    another may be made in the same check.
    """
    progress = progress_since(records[-1], probe) if records else math.nan
    known = [p for p in (progress, *(r.fastest for r in records[-1:])) if math.isfinite(p)]
    fastest = max(known, default=math.nan)
    vectors = None if probe.vectors is None else unit_rows(probe.vectors)
    record = Record(probe.age, probe.clients, probe.whole, unit_gram(probe.gram), progress, fastest, vectors)
    last = (*records, record)[-POOLED:]
    table = pooled(last, probe.clients) if vectors is None else pooled_vectors(last, probe.clients)
    everyone = np.arange(len(probe.clients))
    evidence, second = _examine(probe, table, everyone, progress, record.fastest)
    forks: list[Fork] = []
    _fork("", everyone, evidence, second, probe, table, forks)
    return record, evidence, forks


def _examine(probe: Probe, table: Table, rows: Ints, progress: float, fastest: float) -> tuple[Evidence, Bools | None]:
    """The evidence on some of the members (rows of the probe), and the split of them that is clear, if any."""
    clients = len(probe.clients)
    both, weights = np.concatenate([rows, rows + clients]), probe.weights[rows]
    if probe.vectors is None:
        gram, parts = probe.gram[0][np.ix_(both, both)], table[:, both[:, None], both]
        found = by_products(gram, parts, weights, SIGNIFICANCE)
    else:
        found = by_vectors(probe.vectors[both], table[both], weights, SIGNIFICANCE)
    share = weights / weights.sum()
    evidence = Evidence(
        age=probe.age,
        loss=float(share @ probe.whole[rows]),
        progress=progress,
        fastest=fastest,
        p_value=found.p_value,
        group_p_value=found.group_p_value,
        gain=math.nan,
        conflict=math.nan,
        harm=math.nan,
        shared=math.nan,
        separation=found.separation,
        noise=found.noise,
    )
    return evidence, found.second


def _fork(
    name: str,
    rows: Ints,
    evidence: Evidence,
    second: Bools | None,
    probe: Probe,
    table: Table,
    forks: list[Fork],
) -> None:
    """Add the fork of these members, if it is worth judging, and those of its sides."""
    likely = is_possible(evidence, len(rows))
    if second is None or not (likely or (name == "" and len(rows) <= FEW)):
        return
    sides = rows[~second], rows[second]
    names = [tuple(probe.clients[i] for i in side) for side in sides]
    forks.append(Fork(name, (names[0], names[1]), evidence))
    if likely and len(name) + 1 < DEPTH:
        for digit, side in enumerate(sides):
            if len(side) > 1:
                below = _examine(probe, table, side, math.nan, evidence.fastest)
                _fork(f"{name}{digit}", side, *below, probe, table, forks)


def is_signal(evidence: Evidence, clients: int) -> bool:
    """Do the clients differ? Surely by a p-value, or as surely as few clients can show it.

    Two equal groups must be told apart perfectly. One client among many alike ones, and any of less than FEWEST,
    cannot show much in a p-value; there the separation must exceed the noise as well (eq. 36).
    """
    half, seen = clients // 2, min(evidence.p_value, evidence.group_p_value)
    if seen <= SIGNIFICANCE or (clients >= FEWEST and seen <= SLACK * reachable_p_value(half, clients - half)):
        return True
    return evidence.p_value <= SLACK * reachable_p_value(1, clients - 1) and evidence.separation > evidence.noise


def is_possible(evidence: Evidence, clients: int) -> bool:
    """May the clients differ? Then a split is judged."""
    likely = min(evidence.p_value, evidence.group_p_value) <= POSSIBLE
    return likely or evidence.p_value <= SLACK * reachable_p_value(1, clients - 1) or is_signal(evidence, clients)


def progress_since(before: Record, now: Probe) -> float:
    """The fall of the loss per round since an earlier check, over the clients that both have seen; NaN if none."""
    old = dict(zip(before.clients, before.whole.tolist(), strict=True))
    known = [(w, old[c] - loss) for c, w, loss in zip(now.clients, now.weights, now.whole, strict=True) if c in old]
    if not known:
        return math.nan
    weights, falls = np.array(known).T
    return float(weights @ falls / weights.sum() / max(now.age - before.age, 1.0))


class Judgement(NamedTuple):
    """What is found of a fork once its sides have been judged."""

    fork: Fork
    """With its full evidence."""
    conflict: bool
    """Do its sides conflict?"""
    suggested: bool
    """May they? Then the fork is made if both of its sides are to be split by conflicts of their own."""


def accepted(forks: Sequence[Fork], labels: Mapping[str, Floats], squared: bool = False) -> list[Fork]:
    """The forks to make, from the top down, with their full evidence.

    `labels` are the sums `(8, labels + 1)` over each side, by name (those of a fork named x are x0 and x1); `squared`
    says that losses are squared errors. Two groups on each side dilute the harm that the sides do to each other, so a
    fork whose sides both hold a conflict is made on less evidence.
    """
    judged = {fork.name: found for fork in forks if (found := _judge(fork, labels, squared)) is not None}
    made: list[Fork] = []
    names = {""}
    for name, found in judged.items():
        below = [judged[f"{name}{digit}"] for digit in (0, 1) if f"{name}{digit}" in judged]
        both = len(below) == 2 and all(side.conflict for side in below)
        if name in names and (found.conflict or (found.suggested and both)):
            made.append(found.fork)
            names |= {f"{name}0", f"{name}1"}
    return made


def is_promising(forks: Sequence[Fork], labels: Mapping[str, Floats]) -> bool:
    """May more answers make one of the forks sure? Else it is better to check again soon."""
    found = (_judge(fork, labels, False) for fork in forks)
    return any(each is not None and each.fork.evidence.conflict <= PROMISING for each in found)


def _judge(fork: Fork, labels: Mapping[str, Floats], squared: bool) -> Judgement | None:
    """The full evidence on a fork and what follows; None where nobody of a side has answered."""
    first, second = (labels.get(f"{fork.name}{digit}") for digit in (0, 1))
    if first is None or second is None:
        return None
    harms = harm_of(first, second), harm_of(second, first)
    shared, fastest = min(side.shared for side in harms), fork.evidence.fastest
    evidence = replace(
        fork.evidence,
        gain=gain_of(harms) / fastest if fastest > 0 else math.nan,
        conflict=conflict_p_value(harms),
        harm=min(side.harm for side in harms),
        shared=shared,
    )
    suggested = shared >= LEAST_SHARED and evidence.conflict <= SUGGESTED
    conflict = is_conflict(harms, (SQUARED if squared else 1.0) * fastest if math.isfinite(fastest) else 0.0)
    return Judgement(replace(fork, evidence=evidence), conflict, suggested)
