"""The loop of a run: round after round, each evaluated, recorded and checkpointed.

It serves every engine: the simulator, Ray, a Flower grid, and the drop-in strategies of Flower apps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from coterie.engines.base import Engine
from coterie.methods import Assignment, ClusterInfo, Event, Info, Method, Server
from coterie.parameters import gather
from coterie.runs import metrics
from coterie.runs.diverging import exploding, warnings_of
from coterie.runs.metrics import ClientScore
from coterie.runs.personalised import global_accuracy, personalised
from coterie.runs.records import (
    Bytes,
    ClientRecord,
    ClusterRecord,
    EventRecord,
    FaultRecord,
    RoundRecord,
    SplitRecord,
    Spread,
    Summary,
    to_json,
)
from coterie.runs.result import History, Result, model_file
from coterie.runs.store import Checkpoint, Store
from coterie.tasks import with_private

MOST_CLUSTERS_SCORED = 64
"""Rounds with more clusters than this record metrics over all clients only."""


class Callback(Protocol):
    """Someone who follows a run: a progress bar, a tracker."""

    def on_start(self, run: Run, done: int) -> None:
        """The run begins, or resumes after `done` rounds."""
        ...

    def on_event(self, t: int, event: Event) -> None:
        """Something happened in round `t`."""
        ...

    def on_round(self, record: RoundRecord) -> None:
        """A round is done; `record` is its line of the history."""
        ...

    def on_end(self, result: Result) -> None:
        """The run is complete."""
        ...


@dataclass(frozen=True)
class Run:
    """A method on a federation (through an engine), ready to start."""

    method: Method
    server: Server
    architecture: Callable[[int], nn.Module] | None
    """Makes a freshly initialised module from a seed; None where the server does not know the network."""
    groups: Sequence[int] | None
    """Hidden groups in the order of the clients: for the metrics only, the method never sees this object."""
    labels: dict[str, Any]
    """What the summary says of the run: method, scenario, model, seed."""
    model_shape: dict[str, Any]
    """What is needed to make the model again without the data: its name, input shape, classes and input type."""
    evaluate_every: int | Literal["auto"] = 1
    """Rounds between two evaluations of all clients. "auto": as many as a client waits for its turn on average, with
    the participants alone evaluated in between, so that evaluating costs about what training does."""
    save_models: bool = True
    personalise: int = 0
    """Local epochs of every client's own fine-tuning after the last round; 0 leaves it out."""
    save_every_round: bool = False
    """Checkpoint after every round and before the first, however fast they are."""
    groups_now: Callable[[], Sequence[int] | None] | None = None
    """The hidden groups in the end, in place of `groups`, where clients come and go."""
    before_round: Callable[[int], None] | None = None
    """Called before every round: on a network clients come and go, but between rounds only."""
    evaluate: Callable[[Assignment, int], list[ClientScore]] | None = None
    """Scores the clients in round `t`; None: all of them, each on its own test data."""

    @property
    def engine(self) -> Engine:
        """Where the clients' work runs."""
        return self.server.engine

    def score(self, assignment: Assignment, t: int, among: Sequence[str] | None = None) -> list[ClientScore]:
        """The metrics of all clients, or of those `among`, each with the model it is given."""
        if self.evaluate is not None:
            return self.evaluate(assignment, t)
        return metrics.score_clients(assignment, self.engine, among=among)

    def scores_everybody(self, t: int, info: Info) -> bool:
        """Whether all clients are evaluated after round `t`: the last, and any in which clusters split, are."""
        if self.evaluate_every != "auto":
            return t % self.evaluate_every == 0 or t == self.server.rounds
        every = max(1, round(1 / self.server.participation)) if self.evaluate is None else 1
        return t % every == 0 or t == self.server.rounds or bool(info.splits)


@dataclass(frozen=True)
class Evaluation:
    """An assignment and what it is worth to the clients."""

    assignment: Assignment
    scores: list[ClientScore]
    participants_only: bool = False


def execute(run: Run, store: Store | None = None, callbacks: Sequence[Callback] = ()) -> Result:
    """Do a run from its last checkpoint, if the store has one, to its end."""
    server, method = run.server, run.method
    checkpoint = store.checkpoint() if store else None
    if checkpoint is None:
        checkpoint = Checkpoint(0, method.start(server), {}, *server.traffic.drain(), seconds=0.0)
        if store and run.save_every_round:
            store.save_checkpoint(checkpoint)
    else:
        run.engine.restore_client_states(checkpoint.client_states)
        server.optimizer.moments = dict(checkpoint.server_moments)
    history = History(store.rewind_history(checkpoint.round) if store else [])
    if store:
        store.write_model_shape(run.model_shape)
    for callback in callbacks:
        callback.on_start(run, checkpoint.round)

    done = checkpoint
    known: dict[str, int | None] = {**history.assignment()}
    evaluation: Evaluation | None = None
    last_save, cost = time.monotonic(), 0.0
    for t in range(checkpoint.round + 1, server.rounds + 1):
        began = time.monotonic()
        if run.before_round:
            run.before_round(t)
        state, info = method.round(done.state, t, server)
        info = _with_cut(info, server)
        down, up = server.traffic.drain()
        evaluation = None
        if run.scores_everybody(t, info):
            evaluation = _evaluate(run, state, t)
        elif run.evaluate_every == "auto":
            evaluation = _evaluate_participants(run, state, t)
        if evaluation:
            loss = metrics.spreads(evaluation.scores).get("loss", Spread()).mean
            if event := exploding(loss, history, run.model_shape.get("classes", 0)):
                info = replace(info, events=[*info.events, event])
        record = _record(run, t, info, evaluation, known, Bytes(up, down))
        known = {**known, **record.assignment}
        spent = time.monotonic() - began
        record = replace(record, seconds=round(spent, 4))
        history.append(record)
        done = Checkpoint(t, state, {}, done.bytes_down + down, done.bytes_up + up, done.seconds + spent)
        done = replace(done, server_moments=dict(server.optimizer.moments))
        if store:
            for matrix in info.matrices:
                store.write_matrix(matrix, t)
            store.append_history(record)
            saving = time.monotonic()
            if run.save_every_round or saving - last_save >= checkpoint_pause(cost) or t == server.rounds:
                store.save_checkpoint(replace(done, client_states=run.engine.client_states()))
                last_save = time.monotonic()
                cost = last_save - saving
        for callback in callbacks:
            for event in info.events:
                callback.on_event(t, event)
            callback.on_round(record)

    if finish := getattr(method, "finish", None):
        state = finish(done.state, server)
        if store:
            # The finished state is stored, but not its bytes: they are counted again if this is done again.
            store.save_checkpoint(replace(done, state=state, client_states=run.engine.client_states()))
        down, up = server.traffic.drain()
        done = replace(done, state=state, bytes_down=done.bytes_down + down, bytes_up=done.bytes_up + up)
        evaluation = None
    result = _conclude(run, done, history, evaluation or _evaluate(run, done.state, server.rounds), store)
    for callback in callbacks:
        callback.on_end(result)
    return result


def _with_cut(info: Info, server: Server) -> Info:
    """The round's report, with who sent updates that were too long."""
    if not server.cut:
        return info
    clients = sorted(server.cut)
    server.cut.clear()
    named = ", ".join(clients[:5]) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
    text = f"far longer than others', and cut or left out: the updates of {named}"
    return replace(info, events=[*info.events, Event("clipped", text, {"clients": clients})])


def checkpoint_pause(cost: float) -> float:
    """The least seconds between two checkpoints, if one takes `cost`: they may slow a run down by a twentieth.

    Rounds since the last one are simply done again after a kill.
    """
    return max(2.0, 20 * cost)


def _evaluate(run: Run, state: Any, t: int) -> Evaluation:
    """The clients' models as things stand, and their metrics; looking at them is no part of the method's traffic."""
    assignment = run.method.assignment(state, run.server)
    metrics.check_partition(assignment.members, run.server.clients)
    scores = run.score(assignment, t)
    run.server.traffic.drain()
    return Evaluation(assignment, scores)


def _evaluate_participants(run: Run, state: Any, t: int) -> Evaluation:
    """What the clients' models are worth to those that took part in the round."""
    assignment = run.method.assignment(state, run.server)
    scores = run.score(assignment, t, run.server.participants(t))
    run.server.traffic.drain()
    return Evaluation(assignment, scores, participants_only=True)


def _record(
    run: Run, t: int, info: Info, evaluation: Evaluation | None, known: Mapping[str, int | None], sent: Bytes
) -> RoundRecord:
    """The round's record; `known` is the cluster of every client as recorded so far."""
    spread = metrics.spreads(evaluation.scores) if evaluation else {}
    return RoundRecord(
        round=t,
        clusters=_clusters(info, evaluation),
        bytes=sent,
        seconds=0.0,
        metrics={name: Spread(**to_json(value)) for name, value in spread.items()},
        participants_only=evaluation is not None and evaluation.participants_only,
        assignment=_changes(evaluation.assignment, known) if evaluation and not evaluation.participants_only else {},
        splits=[
            SplitRecord(s.cluster, list(s.children), [list(side) for side in s.members], to_json(s.evidence))
            for s in info.splits
        ],
        events=[EventRecord(event.kind, event.text, to_json(event.details)) for event in info.events],
        faults=[FaultRecord(fault.client, fault.reason) for fault in run.engine.faults()],
    )


def _clusters(info: Info, evaluation: Evaluation | None) -> list[ClusterRecord]:
    """The clusters of a round: what the method saw of each and, where it was evaluated, their members' metrics."""
    seen = {position if c.id is None else c.id: c for position, c in enumerate(info.clusters)}
    if evaluation is None:
        return [_cluster(number, cluster.members, cluster, {}) for number, cluster in seen.items()]
    assignment = evaluation.assignment
    found = []
    for number, members in zip(assignment.cluster_ids, assignment.members, strict=True):
        own = [score for score in evaluation.scores if score.cluster == number]
        few = len(assignment.members) <= MOST_CLUSTERS_SCORED
        means = {name: spread.mean for name, spread in metrics.spreads(own).items()} if few else {}
        found.append(_cluster(number, len(members), seen.get(number), means))
    return found


def _cluster(number: int, members: int, seen: ClusterInfo | None, means: Mapping[str, float | None]) -> ClusterRecord:
    seen = seen or ClusterInfo(members)
    values = to_json([seen.train_loss, seen.mean_norm, seen.max_norm, dict(means), dict(seen.thresholds)])
    return ClusterRecord(number, members, *values)


def _changes(assignment: Assignment, known: Mapping[str, int | None]) -> dict[str, int | None]:
    """Clients whose cluster is another than what is known, and None for those that left."""
    now = {client.client: client.cluster for client in assignment.served()}
    changed: dict[str, int | None] = {client: number for client, number in now.items() if known.get(client) != number}
    return changed | {client: None for client, number in known.items() if number is not None and client not in now}


def _conclude(run: Run, done: Checkpoint, history: History, evaluation: Evaluation, store: Store | None) -> Result:
    """The result of a run, also written to the store."""
    server, assignment, scores = run.server, evaluation.assignment, evaluation.scores
    clusters = [list(members) for members in assignment.members]
    groups = run.groups_now() if run.groups_now else run.groups
    private = _private_layers(assignment, run.engine)
    rows = [_client(score, private) for score in scores]
    summary = Summary(
        **run.labels,
        rounds=server.rounds,
        clients=len(server.clients),
        clusters=clusters,
        cluster_ids=assignment.cluster_ids,
        metrics={name: Spread(**to_json(spread)) for name, spread in metrics.spreads(scores).items()},
        ari=metrics.partition_score(clusters, server.clients, groups),
        bytes=Bytes(done.bytes_up, done.bytes_down),
        seconds=round(done.seconds, 3),
        epsilon=None if server.user_privacy is None else round(server.user_privacy.epsilon(server.rounds), 6),
        delta=None if server.user_privacy is None else server.user_privacy.delta,
        warnings=warnings_of(history),
    )
    if run.personalise:
        summary, rows = _personalised(run, assignment, summary, rows)
    by_id = dict(zip(assignment.cluster_ids, assignment.models, strict=True)) | dict(assignment.other_models)
    files = {model_file(number): run.engine.reveal(model) for number, model in by_id.items()}
    result = Result(
        summary=summary,
        clusters=clusters,
        history=history,
        clients=rows,
        state=done.state,
        layout=run.engine.plain_layout,
        architecture=run.architecture,
        path=store.path if store else None,
        files=files,
        private=private.vectors,
        private_layers=private.names,
    )
    if store:
        store.save_result(result, files if run.save_models else {}, result.private if run.save_models else {})
    return result


@dataclass(frozen=True)
class PrivateLayers:
    """What the clients keep to themselves, as they use it themselves: without a mask."""

    names: tuple[str, ...] = ()
    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    """The layers of each client that has some of its own, joined to one vector."""
    here: bool = True
    """Whether this process knows them; on a network they stay with the clients."""


def _private_layers(assignment: Assignment, engine: Engine) -> PrivateLayers:
    if not assignment.private:
        return PrivateLayers()
    states = engine.client_states()
    if not states:
        return PrivateLayers(assignment.private, here=False)
    # A masked vector has no layers of its own, so there a client keeps all of the model.
    names = assignment.private if engine.layout == engine.plain_layout else engine.plain_layout.names
    spans, plain_spans = engine.layout.select(assignment.private), engine.plain_layout.select(names)
    vectors = {
        served.client: gather(engine.reveal(with_private(served.model, spans, states[served.client])), plain_spans)
        for served in assignment.served()
        if "private" in states.get(served.client, {})
    }
    return PrivateLayers(names, vectors)


def _client(score: ClientScore, private: PrivateLayers) -> ClientRecord:
    model = model_file(score.model) if private.here else None
    own = score.client in private.vectors or not private.here
    values = {name: None if value != value else value for name, value in score.metrics.items()}
    return ClientRecord(score.client, score.cluster, model, score.samples, to_json(values), own)


def _personalised(
    run: Run, assignment: Assignment, summary: Summary, rows: list[ClientRecord]
) -> tuple[Summary, list[ClientRecord]]:
    """FedCUAU's two measures, for any method; each client's fine-tuned accuracy is added to its row.

    The first cluster's model is judged on everybody's test data only where it is a whole model, without private layers.
    """
    server = run.server
    training = server.schedule.at(server.rounds)
    scores = personalised(assignment, run.engine, training, server.seed, epochs=run.personalise)
    after = {score.client: score.accuracy[1] for score in scores}
    rows = [replace(row, personalised=to_json(after.get(row.client))) for row in rows]
    initial = None if assignment.private else global_accuracy(assignment.models[0], run.engine)
    spread = Spread(**to_json(Spread.of(list(after.values()))))
    return replace(summary, initial=to_json(initial), personalised=spread), rows
