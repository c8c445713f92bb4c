"""Made-up histories and clients, and the types of this folder's fixtures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from coterie.runs.records import (
    Bytes,
    ClientRecord,
    ClusterRecord,
    EventRecord,
    RoundRecord,
    SplitRecord,
    Spread,
    Summary,
    to_json,
)

Serve = Callable[..., AbstractContextManager[str]]
Write = Callable[..., Path]


def record(
    t: int,
    clusters: int | Sequence[int] = 1,
    events: Sequence[EventRecord] = (),
    members: int = 5,
    splits: Sequence[SplitRecord] = (),
    assignment: Mapping[str, int | None] | None = None,
) -> RoundRecord:
    """A round, with so many clusters or with clusters of these ids."""
    accuracy = 1 - 1 / (t + 1)
    ids = range(clusters) if isinstance(clusters, int) else clusters
    return RoundRecord(
        t,
        [ClusterRecord(i, members, metrics={"accuracy": accuracy, "loss": 1 / t}) for i in ids],
        Bytes(1000, 1000),
        0.1,
        {"accuracy": Spread(mean=accuracy, worst10=accuracy / 2), "loss": Spread(mean=1 / t)},
        assignment=dict(assignment or {}),
        splits=list(splits),
        events=list(events),
    )


def client(name: str, cluster: int = 0, accuracy: float | None = 0.5, loss: float | None = 1.0) -> ClientRecord:
    """A client of a finished run."""
    return ClientRecord(name, cluster, f"cluster-{cluster}", 9, {"accuracy": accuracy, "loss": loss})


def summary_of(clients: Sequence[ClientRecord], rounds: int) -> Summary:
    """The summary of a finished run with these clients."""
    ids = sorted({row.cluster for row in clients})
    return Summary(
        method="cfl",
        scenario="toy",
        model="mlp",
        seed=0,
        rounds=rounds,
        clients=len(clients),
        clusters=[[row.client for row in clients if row.cluster == number] for number in ids],
        cluster_ids=ids,
        metrics={"accuracy": Spread(mean=0.9, worst10=0.7), "loss": Spread(mean=0.1)},
        ari=1.0,
        bytes=Bytes(5_000_000, 5_000_000),
        seconds=12.0,
    )


def lines(records: Sequence[RoundRecord]) -> bytes:
    """Records as a history file holds them, but for their checksums."""
    return "".join(json.dumps(to_json(r)) + "\n" for r in records).encode()
