"""Made-up histories, and the types of this folder's fixtures."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

Serve = Callable[..., AbstractContextManager[str]]
Write = Callable[..., Path]


def record(t: int, clusters: int = 1, events: list[dict[str, Any]] | None = None, members: int = 5) -> dict[str, Any]:
    """A round's line of the history."""
    accuracy = 1 - 1 / (t + 1)
    return {
        "round": t,
        "bytes": {"up": 1000, "down": 1000},
        "clusters": [{"members": members, "accuracy": accuracy, "loss": 1 / t} for _ in range(clusters)],
        "accuracy": {"mean": accuracy, "worst10": accuracy / 2},
        "loss": {"mean": 1 / t},
        "events": events or [],
        "seconds": 0.1,
    }


def lines(records: list[dict[str, Any]]) -> bytes:
    """Records as a history file holds them."""
    return "".join(json.dumps(r) + "\n" for r in records).encode()
