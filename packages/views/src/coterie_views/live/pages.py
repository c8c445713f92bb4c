"""The clients of a finished run, page by page: of very many only their places in the file are kept in memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.runs.folder import client_rows
from coterie.runs.records import ClientRecord, from_json
from coterie.runs.rows import read_row
from coterie.runs.words import mixture_text
from coterie_views.live.files import open_plain

Places = npt.NDArray[np.int64]

MOST_SHOWN = 100_000
"""Clients of a run up to which a page may have all of them; of more it gets the worst served, one page of them."""


class ClientPages:
    """Rows of `clients.json` by number: in the order of the file or, of more than MOST_SHOWN, the worst first."""

    def __init__(self, folder: Path) -> None:
        """Read the file once, all of it; RunError where it is damaged."""
        self.path = folder / "clients.json"
        self._places = self._index()
        self.total = len(self._places)

    @property
    def worst_first(self) -> bool:
        """Are the clients in the order of how badly they are served?"""
        return self.total > MOST_SHOWN

    def _index(self) -> Places:
        """Where each client's row begins in the file, in the order of the pages."""
        places, badness = array("q"), array("d")
        for place, row in client_rows(self.path):
            places.append(place)
            badness.append(_badness(row))
        found = np.asarray(places, dtype=np.int64)
        if len(places) > MOST_SHOWN:
            return found[np.argsort(-np.asarray(badness), kind="stable")]
        return found

    def page(self, start: int, most: int) -> list[dict[str, Any]]:
        """Rows from number `start` on; OSError or ValueError where the file has changed meanwhile."""
        with open_plain(self.path) as file:
            rows = [read_row(file, int(place)) for place in self._places[start : start + most]]
        return [shown(row) for row in from_json(list[ClientRecord], rows, str(self.path))]


def _badness(row: ClientRecord) -> float:
    """How badly a client is served: by error where there is an accuracy, else by loss; not measured ones least."""
    if row.accuracy is not None:
        return 1.0 - row.accuracy
    return -math.inf if row.loss is None else row.loss


def shown(row: ClientRecord) -> dict[str, Any]:
    """A client as the page shows it."""
    known = {"client": row.client, "cluster": row.cluster, "test_samples": row.test_samples, **row.metrics}
    tuned = {} if row.personalised is None else {"personalised": row.personalised}
    return known | tuned | mixture_row(row.mixture)


def mixture_row(weights: Mapping[Any, float]) -> dict[str, Any]:
    """What a client's row says of the models it is served by together; nothing where it has one."""
    return {"mixture": mixture_text(weights)} if weights else {}
