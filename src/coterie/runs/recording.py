"""A round's record: what the method reports of it, and what its models are worth to the clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie.engines.base import Traffic
from coterie.methods import Assignment, ClusterInfo, ClusterSplit, Event, Info, Server
from coterie.runs import metrics
from coterie.runs.metrics import ClientScore
from coterie.runs.prepared import Run
from coterie.runs.records import (
    CHANGED,
    MOST_CLUSTERS,
    Bytes,
    ClusterRecord,
    EventRecord,
    FaultRecord,
    RoundRecord,
    SplitRecord,
    Spread,
    to_json,
)
from coterie.runs.target_scaling import means_in_units

FALLBACK = "fallback"
"""The kind of the event that names clients with another model than their cluster's."""


@dataclass(frozen=True)
class Evaluation:
    """An assignment and what it is worth to the clients."""

    assignment: Assignment
    scores: list[ClientScore]
    """On the clients' test data; empty where choices are hidden, and no client's own scores are known."""
    validation: list[ClientScore]
    means: Mapping[str, Spread]
    """Every metric over the clients, on their test data."""
    validation_means: Mapping[str, Spread]
    participants_only: bool

    @property
    def spreads(self) -> dict[str, Spread]:
        """Every metric over the clients, on their test data; None for what JSON cannot hold."""
        return _storable(self.means)

    @property
    def validation_spreads(self) -> dict[str, Spread]:
        """The same on their validation data."""
        return _storable(self.validation_means)


def evaluate(run: Run, state: Any, t: int, among: Sequence[str] | None = None) -> Evaluation:
    """The models as they are, and the metrics of all clients or those `among`; that is no part of the traffic."""
    assignment = run.method.assignment(state, run.server)
    hidden = assignment.hidden if among is None else None
    if among is None and hidden is None:
        metrics.check_partition(assignment.members, run.server.clients)
    scores: dict[str, list[ClientScore]] = {"test": [], "validation": []}
    means: dict[str, dict[str, Spread]] = {"test": {}, "validation": {}}
    for part in ("test", "validation") if run.validate and among is None else ("test",):
        if hidden is None:
            scores[part] = run.score(assignment, t, among, part)
            means[part] = metrics.spreads(scores[part])
        else:
            found = metrics.hidden_spreads(hidden, run.engine, part, run.metrics)
            means[part] = means_in_units(found, run.loss_unit)
    run.server.traffic.drain()
    return Evaluation(
        assignment,
        scores["test"],
        scores["validation"],
        means["test"],
        means["validation"],
        participants_only=among is not None,
    )


def _storable(spreads: Mapping[str, Spread]) -> dict[str, Spread]:
    """The same spreads with None for what JSON cannot hold."""
    return {name: Spread(**to_json(spread)) for name, spread in spreads.items()}


def round_record(
    run: Run,
    t: int,
    info: Info,
    evaluation: Evaluation | None,
    known: Mapping[str, int | None],
    mixed: Mapping[str, Mapping[int, float]],
    spent: Traffic,
) -> RoundRecord:
    """The round's record; `known` is the cluster of every client as recorded so far, `mixed` the mixtures."""
    record = RoundRecord(
        round=t,
        clusters=_clusters(info, evaluation),
        bytes=Bytes(spent.up, spent.down),
        seconds=0.0,
        splits=[_split(split) for split in info.splits],
        events=[event_record(event) for event in info.events],
        faults=[FaultRecord(fault.client, fault.reason) for fault in run.engine.faults()],
        epsilon=epsilon_of(run.server, t),
        passes=passes_of(run, spent.passes),
        exchanges=spent.exchanges,
    )
    if evaluation is None:
        return record
    record = replace(record, metrics=evaluation.spreads, validation=evaluation.validation_spreads)
    if evaluation.participants_only:
        return replace(record, participants_only=True)
    assignment = evaluation.assignment
    return replace(record, assignment=_changes(assignment, known), mixtures=_mixture_changes(assignment, mixed))


def _clusters(info: Info, evaluation: Evaluation | None) -> list[ClusterRecord]:
    """The clusters of a round: what the method saw of each and, where it was evaluated, their members' metrics."""
    seen = {position if c.id is None else c.id: c for position, c in enumerate(info.clusters)}
    if evaluation is None:
        return [_cluster(number, cluster.members, cluster, {}) for number, cluster in seen.items()]
    assignment = evaluation.assignment
    found = []
    for number, size in zip(assignment.cluster_ids, assignment.sizes, strict=True):
        own = [score for score in evaluation.scores if score.cluster == number]
        few = len(assignment.members) <= MOST_CLUSTERS
        means = {name: spread.mean for name, spread in metrics.spreads(own).items()} if few else {}
        found.append(_cluster(number, size, seen.get(number), means))
    return found


def _cluster(number: int, members: int, seen: ClusterInfo | None, means: Mapping[str, float | None]) -> ClusterRecord:
    seen = seen or ClusterInfo(members)
    values = to_json([seen.train_loss, seen.mean_norm, seen.max_norm, dict(means), dict(seen.thresholds)])
    return ClusterRecord(number, members, *values)


def _changes(assignment: Assignment, known: Mapping[str, int | None]) -> dict[str, int | None]:
    """Clients whose cluster is another than what is known, and None for those that left."""
    now = {client.client: client.cluster for client in assignment.served()}
    moved = {client: cluster for client, cluster in now.items() if known.get(client) != cluster}
    left = [client for client, cluster in known.items() if cluster is not None and client not in now]
    return {**moved, **dict.fromkeys(left)}


def _mixture_changes(assignment: Assignment, known: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
    """Mixtures in hundredths that are others than what is known; an empty one where a client has one model again."""
    changed = {}
    for client in assignment.served():
        mixture = {number: rounded for number, weight in client.mixture.items() if (rounded := round(weight, 2))}
        if mixture != known.get(client.client, {}):
            changed[client.client] = mixture
    return changed


def event_record(event: Event) -> EventRecord:
    return EventRecord(event.kind, event.text, to_json(event.details))


def _split(split: ClusterSplit) -> SplitRecord:
    sides = [list(side) for side in split.members]
    return SplitRecord(split.cluster, list(split.children), sides, to_json(split.evidence))


def passes_of(run: Run, counted: float) -> float | None:
    """Passes for the records; None where clients' work is not seen."""
    return None if run.engine.capabilities.remote else round(counted, 3)


def epsilon_of(server: Server, rounds: int) -> float | None:
    """What this number of rounds gives away of any one client, where noise was asked for."""
    return None if server.user_privacy is None else round(server.user_privacy.epsilon(rounds), 6)


def rule_event(server: Server) -> list[Event]:
    """How updates become one, where that is not the plain weighted mean."""
    text = server.aggregation.describe()
    return [Event("aggregation", f"updates are combined by choice: {text}")] if text else []


def cut_event(server: Server) -> list[Event]:
    """Whose updates were longer than the run's limit."""
    clients = server.report_shortened()
    text = f"longer than the run's limit and shortened to it: the updates of {_first_few(clients)}"
    return [Event("clipped", text, {"clients": clients})] if clients else []


def changed_event(clients: Sequence[str]) -> list[Event]:
    """Who holds other data from this round on, which the method does not see."""
    text = f"other data from this round on: {_first_few(clients)}"
    return [Event(CHANGED, text, {"clients": list(clients)})] if clients else []


def _first_few(clients: Sequence[str]) -> str:
    return ", ".join(clients[:5]) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")


def served_elsewhere(assignment: Assignment) -> list[Event]:
    """What to record of clients that are served by something other than their cluster's model in the end."""
    if assignment.events:
        return [replace(event, kind=FALLBACK) for event in assignment.events]
    served = {
        client.client: client.model_id
        for client in assignment.served()
        if client.model_id != client.cluster and not client.mixture
    }
    if not served:
        return []
    named = [f"{client} by model {number}" for client, number in list(served.items())[:5]]
    more = [f"{len(served) - 5} more"] if len(served) > 5 else []
    text = f"served by another model than their cluster's: {', '.join(named + more)}"
    text += f": {assignment.served_because}" if assignment.served_because else ""
    return [Event(FALLBACK, text, {"served": served})]


def as_served(record: RoundRecord, evaluation: Evaluation, events: Sequence[Event]) -> RoundRecord:
    """The last round's record with the clients' models as they are given in the end: the same numbers as in tables."""
    clusters = []
    for cluster in record.clusters:
        own = metrics.spreads([score for score in evaluation.scores if score.cluster == cluster.id])
        means = {name: spread.mean for name, spread in own.items()} if cluster.metrics else {}
        clusters.append(replace(cluster, metrics=to_json(means)))
    others = [known for known in record.events if known.kind != FALLBACK]  # a resumed run has recorded it before
    return replace(record, clusters=clusters, metrics=evaluation.spreads, events=[*others, *map(event_record, events)])
