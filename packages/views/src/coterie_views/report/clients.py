"""What a report keeps of the clients: of very many only both ends of the list, and every accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from coterie.runs.folder import ROWS_AT_ONCE
from coterie.runs.records import ClientRecord
from coterie_views.verdict import ClientScores

WORST, BEST = 50, 10
"""Clients that are listed of each end, where there are more."""


@dataclass
class ReportedClients:
    """The clients of a run as a report knows them."""

    total: int = 0
    scores: ClientScores = field(default_factory=ClientScores)
    """What all of them are judged by."""
    served_elsewhere: int = 0
    """How many are given another model than their cluster's, and no mixture."""
    heaviest: list[float] = field(default_factory=list)
    """Of those that are served by several models together, the heaviest weight."""
    listed: list[ClientRecord] = field(default_factory=list)
    """Worst first: all, or the WORST and the BEST."""

    @classmethod
    def of(cls, rows: Iterable[ClientRecord]) -> ReportedClients:
        """What is kept of these clients, which are seen once."""
        found = cls()
        for row in rows:
            found.total += 1
            found.scores.add(row)
            if row.mixture:
                found.heaviest.append(max(row.mixture.values()))
            elif row.model not in (None, f"cluster-{row.cluster}"):
                found.served_elsewhere += 1
            found.listed.append(row)
            if len(found.listed) == ROWS_AT_ONCE:
                found.listed = _ends(found.listed)
        found.listed = _ends(found.listed)
        return found


def _ends(rows: list[ClientRecord]) -> list[ClientRecord]:
    """The rows in order, worst first; of many, both ends."""
    ordered = sorted(rows, key=worst_first)
    return ordered if len(ordered) <= WORST + BEST else ordered[:WORST] + ordered[-BEST:]


def worst_first(row: ClientRecord) -> tuple[float, float, str]:
    """Lowest accuracy first, of equal ones the highest loss; clients that were not measured last."""
    accuracy = row.accuracy if row.accuracy is not None else 1.0 if row.loss is not None else math.inf
    return accuracy, -row.loss if row.loss is not None else 0.0, row.client
