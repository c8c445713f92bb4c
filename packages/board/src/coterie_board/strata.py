"""Methods over the federations of a stratum: ranks, how much less error than one model, and regret to known groups."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie_board.board import Board
from coterie_board.federations import BoardFederation, Stratum
from coterie_board.methods import ORACLE, REFERENCE, takes_part
from coterie_board.standings import ALPHA, failure, rank, seed_values
from coterie_studies import holm, p_value
from coterie_views.verdict import interval

LEAST_ERROR = 0.001
"""Errors below it count as it: a tenth of a percent is less than one test sample of all clients of most federations."""


@dataclass(frozen=True)
class Effect:
    """How much less error a method has than the reference: the mean over federations of log(reference's / its own)."""

    mean: float
    low: float | None
    """Ends of the 95 % interval by Student's t, over the federations; None for a single one."""
    high: float | None
    p: float | None
    """Two-sided, of no difference in the mean."""
    p_holm: float | None
    """After Holm's correction for all methods of the stratum."""
    federations: int
    """Those on which neither failed."""

    @property
    def sure(self) -> bool:
        return self.p_holm is not None and self.p_holm < ALPHA


@dataclass(frozen=True)
class Ranking:
    """Methods over the federations of a stratum on which every one of them was run."""

    stratum: Stratum
    methods: list[str]
    """By mean rank, the best first."""
    federations: list[str]
    ranks: dict[str, list[float]]
    """By method, one per federation."""
    friedman_p: float
    """Of "all methods are equally good"."""
    critical_difference: float
    """Mean ranks that are further apart differ at the level of 5 % (Nemenyi)."""
    effects: dict[str, Effect]
    """By method, but the reference."""
    regrets: dict[str, float]
    """By method, the mean over federations of log(its error / that of known groups), where groups are known."""

    def mean(self, method: str) -> float:
        """A method's mean rank."""
        return statistics.fmean(self.ranks[method])


def rankings(board: Board) -> list[Ranking]:
    """The ranking of every stratum with at least two complete federations and three methods that all of them have."""
    strata = dict.fromkeys(entry.stratum for entry in board.complete())
    return [found for stratum in strata if (found := make_ranking(board, stratum)) is not None]


def make_ranking(board: Board, stratum: Stratum) -> Ranking | None:
    """The ranking of one stratum, or None where there is too little."""
    from scipy.stats import friedmanchisquare

    complete = [entry for entry in board.complete() if entry.stratum == stratum]
    rows = [row for row in board.methods if row != ORACLE and all(takes_part(row, entry) for entry in complete)]
    if len(complete) < 2 or len(rows) < 3:
        return None
    errors = {entry.name: errors_of(board, entry) for entry in complete}
    table = np.asarray([rank([_negative(errors[entry.name].get(row)) for row in rows]) for entry in complete])
    ranks = {row: table[:, place].tolist() for place, row in enumerate(rows)}
    return Ranking(
        stratum=stratum,
        methods=sorted(rows, key=lambda row: statistics.fmean(ranks[row])),
        federations=[entry.name for entry in complete],
        ranks=ranks,
        friedman_p=float(friedmanchisquare(*table.T).pvalue),
        critical_difference=critical_difference(len(rows), len(complete)),
        effects=effects_on(errors, [row for row in rows if row != REFERENCE]),
        regrets={row: -statistics.fmean(logs) for row in rows if (logs := log_ratios(errors, row, ORACLE))},
    )


def errors_of(board: Board, entry: BoardFederation) -> dict[str, float]:
    """The mean error of every row that did not fail: what accuracy or AUC lacks to 1, or the RMSE."""
    found = {}
    for row, own in board.results[entry.name].items():
        if failure(board, entry, row) is None:
            mean = statistics.fmean(seed_values(own).values())
            found[row] = max(LEAST_ERROR, 1 - mean if entry.higher_is_better else mean)
    return found


def log_ratios(errors: Mapping[str, Mapping[str, float]], row: str, other: str) -> list[float]:
    """log(the other's error / the row's), one for each federation on which neither failed."""
    return [math.log(own[other] / own[row]) for own in errors.values() if row in own and other in own]


def effects_on(errors: Mapping[str, Mapping[str, float]], rows: Sequence[str]) -> dict[str, Effect]:
    """The rows' effects beside the reference, with tests that are corrected together."""
    samples = {row: logs for row in rows if (logs := log_ratios(errors, row, REFERENCE))}
    p_values = [p_value(sample) for sample in samples.values()]
    found = {}
    for (row, sample), p, p_holm in zip(samples.items(), p_values, holm(p_values), strict=True):
        low, high = interval(sample) or (None, None)
        found[row] = Effect(statistics.fmean(sample), low, high, p, p_holm, len(sample))
    return found


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def critical_difference(methods: int, federations: int, alpha: float = ALPHA) -> float:
    """Nemenyi's critical difference of mean ranks: q_α √(k (k + 1) / 6 N), q_α the studentised range's over √2."""
    from scipy.stats import studentized_range

    q = float(studentized_range.ppf(1 - alpha, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * federations))


def cliques(ranks: Sequence[float], width: float) -> list[tuple[int, int]]:
    """Largest runs (first, last) of sorted mean ranks that lie within the critical difference; none of one alone."""
    found: list[tuple[int, int]] = []
    for first, low in enumerate(ranks):
        last = max(place for place, value in enumerate(ranks) if value <= low + width)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found
