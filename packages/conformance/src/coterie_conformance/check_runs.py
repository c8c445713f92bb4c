"""Checks of whole runs: they repeat, resume and count their bytes; clients that come late or fail spoil nothing."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from coterie import Federation, Result, RoundRecord, Split, resume, run
from coterie.runs import Run
from coterie_conformance.check_clusters import require_partition
from coterie_conformance.checking import DoesNotApply, Failed, check
from coterie_conformance.subjects import Subject
from coterie_conformance.trials import (
    MODEL,
    TRAINING,
    all_finite,
    cluster_of,
    keeps_all,
    passing,
    start,
    tiny_federation,
)

SCALE = 1e30
"""Of the inputs of a client that fails: activations overflow."""


def run_of(subject: Subject, **options: Any) -> Result:
    """A run of the method on the tiny federation, with half of the clients in a round."""
    given = TRAINING | {"rounds": subject.rounds, "participation": 0.5, "progress": False} | options
    return run(subject.method, tiny_federation(), model=MODEL, **given)


def require_equal(one: Result, other: Result, what: str) -> None:
    """Failed unless two runs have the same clusters, models, bytes and scores, bit for bit."""
    if one.clusters != other.clusters:
        raise Failed(f"{what}: other clusters")
    if any(a.numpy().tobytes() != b.numpy().tobytes() for a, b in zip(one.models, other.models, strict=True)):
        raise Failed(f"{what}: other models")
    if [row.loss for row in one.clients] != [row.loss for row in other.clients]:
        raise Failed(f"{what}: clients have other losses")
    if one.summary.bytes != other.summary.bytes:
        raise Failed(f"{what}: {other.summary.bytes} in place of {one.summary.bytes}")


@check(
    "repeats",
    "Does the same seed give the same run bit for bit, once more and with two worker processes?",
    "draws from a global generator, and sums in the order in which replies happen to arrive",
)
def repeats(subject: Subject) -> str | None:
    first = run_of(subject)
    require_equal(first, run_of(subject), "the same run again")
    require_equal(first, run_of(subject, workers=2), "two workers")
    return None


class _Stop(BaseException):
    pass


class _Stopper:
    """Breaks a run off after a round, as a kill would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_start(self, run: Run, done: int) -> None: ...
    def on_event(self, t: int, event: object) -> None: ...
    def on_end(self, result: Result) -> None: ...
    def on_round(self, record: RoundRecord) -> None:
        if record.round == self.after:
            raise _Stop


@check(
    "resumes",
    "Does a run that was broken off resume to the bits of the run that was not?",
    "state that is kept outside of the state: in the object, in a module, in a closure",
)
def resumes(subject: Subject) -> str | None:
    with tempfile.TemporaryDirectory() as place:
        whole = run_of(subject)
        folder = Path(place) / "run"
        try:
            run_of(subject, out=folder, callbacks=[_Stopper(2)])
        except _Stop:
            again = resume(
                folder, federation=tiny_federation(), model=MODEL, method=subject.method, workers=1, progress=False
            )
            require_equal(whole, again, "resumed")
            return None
        raise Failed("a run of four rounds has no second one")


@check(
    "bytes",
    "Does every round in which clients answer count at least the numbers that their replies hold?",
    "figures of communication that leave out what is sent",
)
def bytes_counted(subject: Subject) -> str | None:
    trial = start(subject.method)
    engine = passing(trial)
    for _ in range(subject.rounds):
        engine.traffic.drain()
        engine.replies.clear()
        trial.state, _ = trial.method.round(trial.state, trial.t + 1, trial.server)
        trial.t += 1
        down, up = engine.traffic.drain()
        least = 0
        for request, reply in engine.replies:
            private = sum(span.stop - span.start for span in request.task.schema(engine.layout).private)
            least += 4 * (0 if reply.vector is None else len(reply.vector) - private)
        if engine.replies and (down == 0 or up == 0 or up < least):
            raise Failed(f"round {trial.t}: {down} bytes down and {up} up, and the replies hold {least} at least")
    return None


@check(
    "newcomer",
    "Is a client that comes in a later round placed, and one that leaves forgotten?",
    "tables with one row per client of the first round",
)
def newcomer(subject: Subject) -> str | None:
    federation = tiny_federation()
    trial = start(subject.method, first=federation.ids[:-1])
    trial.rounds(2)
    passing(trial).admit(federation.ids)
    for _ in range(2):
        require_partition(trial.round(), federation.ids, f"round {trial.t}, with a newcomer")
    passing(trial).admit(federation.ids[1:])
    require_partition(trial.round(), federation.ids[1:], f"round {trial.t}, when a client has left")
    if not all_finite(trial.last):
        raise Failed("a model is not finite after a client came and another left")
    return None


@check(
    "place",
    "Does the rule for newcomers after the run put each into a cluster that there is?",
    "a rule that was never called",
)
def place(subject: Subject) -> str | None:
    rule = getattr(subject.method, "place", None)
    if rule is None:
        raise DoesNotApply("it has no rule of its own: newcomers go where a model has the lowest loss")
    trial = subject.plain
    if keeps_all(trial.last, trial.server) and len(trial.last.members) == len(trial.server.clients):
        raise DoesNotApply("every client trains by itself")
    found = rule(trial.state, list(trial.server.clients), trial.server)
    known = set(cluster_of(trial.last).values()) | set(trial.last.by_id)
    for client in trial.server.clients:
        if found.get(client) not in known:
            raise Failed(f"{client} is placed in {found.get(client)}, and the clusters are {sorted(known)}")
    return None


@check(
    "failing client",
    "Do all models stay finite and all clients keep a cluster when one client's updates are not finite?",
    "one client's overflow that spoils a mean, and with it everybody",
)
def failing_client(subject: Subject) -> str | None:
    federation = tiny_federation()
    bad = federation.clients[2]
    huge = dataclasses.replace(bad, train=Split(bad.train.x * SCALE, bad.train.y))
    spoilt = Federation([huge if c.id == bad.id else c for c in federation], federation.classes, federation.name)
    trial = start(subject.method, spoilt)
    faults = 0
    for _ in range(subject.rounds):
        require_partition(trial.round(), spoilt.ids, f"round {trial.t}")
        faults += len(trial.server.engine.faults())
        if not all_finite(trial.last):
            raise Failed(f"round {trial.t}: a model is not finite")
    return None if faults else "its updates were finite or nobody asked for them"
