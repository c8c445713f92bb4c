"""The clients of a finished run, page by page: of very many only their places in the file are kept in memory."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from coterie.live.files import open_plain
from coterie.runs.folder import RunFolder
from coterie.runs.records import ClientRecord, from_json
from coterie.runs.rows import is_row_wise, read_row, read_rows
from coterie.runs.words import mixture_text

MOST_SHOWN = 100_000
"""Clients of a run up to which a page may have all of them; of more it gets the worst served, one page of them."""
AT_ONCE = 10_000
"""Rows that are checked together."""


class ClientPages:
    """Rows of `clients.json` by number: in the order of the file or, of more than MOST_SHOWN, the worst first."""

    def __init__(self, folder: Path) -> None:
        """Read the file once, all of it; RunError where it is damaged."""
        self.path = folder / "clients.json"
        self._rows: list[dict[str, Any]] = []
        self._places: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(0, dtype=np.int64)
        if is_row_wise(self.path):
            self._index()
        else:
            self._rows = [shown(row) for row in RunFolder(folder).clients()]
        self.total = len(self._places) or len(self._rows)

    @property
    def worst_first(self) -> bool:
        """Are the clients in the order of how badly they are served?"""
        return self.total > MOST_SHOWN

    def _index(self) -> None:
        places, badness = array("q"), array("d")
        waiting: list[Any] = []
        for place, row in read_rows(self.path):
            places.append(place)
            waiting.append(row)
            if len(waiting) == AT_ONCE:
                badness.extend(self._checked(waiting))
                waiting = []
        badness.extend(self._checked(waiting))
        self._places = np.frombuffer(places, dtype=np.int64)
        if len(places) > MOST_SHOWN:
            self._places = self._places[np.argsort(-np.frombuffer(badness), kind="stable")]

    def _checked(self, rows: list[Any]) -> list[float]:
        """How badly each is served: by error where there is an accuracy, else by loss; those not measured least."""
        found = from_json(list[ClientRecord], rows, str(self.path))
        return [_badness(row) for row in found]

    def page(self, start: int, most: int) -> list[dict[str, Any]]:
        """Rows from number `start` on; OSError or ValueError where the file has changed meanwhile."""
        if len(self._places) == 0:
            return self._rows[start : start + most]
        with open_plain(self.path) as file:
            rows = [read_row(file, int(place)) for place in self._places[start : start + most]]
        return [shown(row) for row in from_json(list[ClientRecord], rows, str(self.path))]


def _badness(row: ClientRecord) -> float:
    if row.accuracy is not None:
        return 1.0 - row.accuracy
    return -math.inf if row.loss is None else row.loss


def shown(row: ClientRecord) -> dict[str, Any]:
    """A client as the page shows it."""
    return (
        {"client": row.client, "cluster": row.cluster, "test_samples": row.test_samples, **row.metrics}
        | ({} if row.personalised is None else {"personalised": row.personalised})
        | ({"mixture": mixture_text(row.mixture)} if row.mixture else {})
    )
