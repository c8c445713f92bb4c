"""The result of a run: its summary, its clients and its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from coterie.engines.base import Engine
from coterie.methods import Assignment, Event
from coterie.parameters import gather
from coterie.runs import metrics
from coterie.runs.personalised import global_accuracy, personalised
from coterie.runs.prepared import Run
from coterie.runs.recording import Evaluation, epsilon_of, passes_of
from coterie.runs.records import (
    Bytes,
    ClientRecord,
    History,
    Spread,
    Summary,
    model_file,
    to_json,
)
from coterie.runs.result import Result
from coterie.runs.stopping import warnings_of
from coterie.runs.store import Checkpoint, Store
from coterie.tasks import with_private


def conclude(
    run: Run,
    done: Checkpoint,
    history: History,
    evaluation: Evaluation,
    store: Store | None,
    stop: Event | None,
) -> Result:
    """The result of a run, also written to the store. The evaluation's scores are used up."""
    assignment = evaluation.assignment
    private = _private_layers(assignment, run.engine)
    summary = _summary(run, done, history, evaluation, stop)
    rows = _client_rows(run, evaluation, private)
    if run.personalise:
        summary, rows = _personalised(run, assignment, summary, rows)
    files = {model_file(number): run.engine.reveal(model) for number, model in assignment.by_id.items()}
    result = Result(
        summary=summary,
        history=history,
        clients=rows,
        state=done.state,
        layout=run.engine.plain_layout,
        architecture=run.architecture,
        path=store.path if store else None,
        files=files,
        private=private.vectors,
        private_layers=private.names,
        shape=run.model_shape,
        table=run.table,
        placing=run.placing,
    )
    if store:
        store.save_result(result)
    return result


def _summary(run: Run, done: Checkpoint, history: History, evaluation: Evaluation, stop: Event | None) -> Summary:
    """What the run comes to, in numbers."""
    server, assignment = run.server, evaluation.assignment
    clusters = [list(members) for members in assignment.members]
    groups = run.groups_now() if run.groups_now else run.groups
    return Summary(
        **run.labels,
        rounds=done.round,
        clients=len(server.clients),
        clusters=clusters,
        cluster_ids=assignment.cluster_ids,
        metrics=evaluation.spreads,
        ari=None if assignment.hidden else metrics.partition_score(clusters, server.clients, groups),
        bytes=Bytes(done.bytes_up, done.bytes_down),
        seconds=round(done.seconds, 3),
        epsilon=epsilon_of(server, done.round),
        delta=None if server.user_privacy is None else server.user_privacy.delta,
        warnings=warnings_of(history),
        validation=evaluation.validation_spreads,
        stopped=None if stop is None else stop.text,
        best_round=_best_round(done, history),
        hidden_sizes=list(assignment.hidden.sizes) if assignment.hidden else None,
        train_samples=sum(run.engine.samples.values()),
        passes=passes_of(run, done.passes),
        exchanges=done.exchanges,
    )


def _best_round(done: Checkpoint, history: History) -> int | None:
    """The round whose models the run ends with, where it kept the best."""
    if not history or done.best is None:
        return None
    is_served = history[-1].restored is not None or done.best.round == done.round
    return done.best.round if is_served else None


def _client_rows(run: Run, evaluation: Evaluation, private: PrivateLayers) -> list[ClientRecord]:
    """Every client's record; its scores are used up one by one, so that a million clients are not held twice."""
    validation = {score.client: score.metrics for score in evaluation.validation}
    rows = []
    evaluation.scores.reverse()
    while evaluation.scores:
        score = evaluation.scores.pop()
        row = ClientRecord(
            score.client,
            score.cluster,
            model_file(score.model) if private.here else None,
            score.samples,
            to_json(score.metrics),
            score.client in private.vectors or not private.here,
            validation=to_json(validation.get(score.client, {})),
            mixture={model_file(number): weight for number, weight in score.mixture.items()},
            constant=to_json(run.constant(score.client)) if run.constant else None,
        )
        rows.append(row)
    return rows


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


def _personalised(
    run: Run, assignment: Assignment, summary: Summary, rows: list[ClientRecord]
) -> tuple[Summary, list[ClientRecord]]:
    """FedCUAU's two measures, for any method; each client's fine-tuned accuracy is added to its row.

    The first cluster's model is judged on all test data only where it is a whole model, without private layers.
    """
    server = run.server
    training = server.schedule.at(summary.rounds)
    replies = personalised(assignment, run.engine, training, server.seed, epochs=run.personalise)
    after = {reply.client: reply.values["accuracy"][1] for reply in replies}
    rows = [replace(row, personalised=to_json(after.get(row.client))) for row in rows]
    initial = None if assignment.private else global_accuracy(assignment.models[0], run.engine)
    spread = Spread(**to_json(Spread.of(list(after.values()))))
    return replace(summary, initial=to_json(initial), personalised=spread), rows
