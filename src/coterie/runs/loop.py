"""The loop of a run: round after round, each evaluated, recorded and checkpointed.

It serves every engine: the simulator, Ray, a Flower grid, and the drop-in strategies of Flower apps.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from coterie.engines.base import Engine, Spent
from coterie.errors import CallbackError
from coterie.methods import Assignment, ClusterInfo, ClusterSplit, Event, Info, Server
from coterie.methods.needs import needs_of
from coterie.parameters import gather
from coterie.runs import metrics
from coterie.runs.callbacks import Callback, Followers
from coterie.runs.diverging import ExplosionWatch, warnings_of
from coterie.runs.history import CHANGED, History
from coterie.runs.metrics import ClientScore
from coterie.runs.personalised import global_accuracy, personalised
from coterie.runs.prepared import Run
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
    mixtures,
    model_file,
    to_json,
)
from coterie.runs.result import Result
from coterie.runs.samples import make_table
from coterie.runs.stopping import RESTORED, STOPPED
from coterie.runs.store import Checkpoint, KeptRound, Store
from coterie.runs.target_scaling import info_in_units, means_in_units
from coterie.tasks import with_private

FALLBACK = "fallback"
"""The kind of the event that tells of clients with another model than their cluster's."""
MOST_CLUSTERS_SCORED = 64
"""Rounds with more clusters than this record metrics over all clients only."""


@dataclass(frozen=True)
class Evaluation:
    """An assignment and what it is worth to the clients."""

    assignment: Assignment
    scores: list[ClientScore]
    participants_only: bool = False
    validation: list[ClientScore] = field(default_factory=list)
    means: Mapping[str, Spread] = field(default_factory=dict)
    """Every metric over the clients, where choices are hidden and nobody's own scores are known."""
    validation_means: Mapping[str, Spread] = field(default_factory=dict)

    @property
    def spreads(self) -> dict[str, Spread]:
        """Every metric over the clients, on their test data; None for what JSON cannot hold."""
        return _storable(self.means or metrics.spreads(self.scores))

    @property
    def validation_spreads(self) -> dict[str, Spread]:
        """The same on their validation data."""
        return _storable(self.validation_means or metrics.spreads(self.validation))


def execute(run: Run, store: Store | None = None, callbacks: Sequence[Callback] = ()) -> Result:
    """Do a run from its last checkpoint, if the store has one, to its end."""
    server = run.server
    server.needs = needs_of(run.method)
    done = _checkpoint(run, store)
    history = History(store.rewind_history(done.round) if store else [])
    _enter(run, done.round, store)
    stop = run.limits.reached(history, done) if history else None
    if stop is None and done.round < server.rounds:
        done = _taken_up(run, done, history, store)
    progress = Progress(run, store, Followers(callbacks), history, done)
    progress.followers.start(run, done.round)
    while stop is None and progress.done.round < server.rounds:
        stop = progress.do_round(progress.done.round + 1)
    return _end(progress, stop)


def _checkpoint(run: Run, store: Store | None) -> Checkpoint:
    """What the run starts from: the store's checkpoint, given back to server and clients, or a fresh state."""
    server = run.server
    known = store.checkpoint() if store else None
    if known is not None:
        run.engine.restore_client_states(known.client_states)
        server.restore(known.server)
        return known
    state = run.method.start(server)
    fresh = _with_spent(Checkpoint(0, state, {}, 0, 0, 0.0, server=server.state()), server.traffic.drain_all())
    if store and run.save_every_round:
        store.save_checkpoint(fresh)
    return fresh


def _enter(run: Run, done: int, store: Store | None) -> None:
    """Give clients what they hold after round `done`, and write what does not change in a run."""
    if run.enter_round:
        run.enter_round(done)
    if store:
        store.write_model_shape(run.model_shape)
        if run.table is not None:
            store.write_table(run.table)


class Progress:
    """A run on its way: what is done, what was recorded, and the last evaluation."""

    def __init__(self, run: Run, store: Store | None, followers: Followers, history: History, done: Checkpoint) -> None:
        self.run, self.store, self.followers, self.history, self.done = run, store, followers, history, done
        self.evaluation: Evaluation | None = None
        self._clusters: dict[str, int | None] = {**history.assignment()}
        self._mixtures = mixtures(history)
        self._watch = ExplosionWatch(run.model_shape.get("classes", 0), history)
        self._saved_at, self._cost_of_saving = time.monotonic(), 0.0

    def do_round(self, t: int) -> Event | None:
        """Do, evaluate, record and keep a round; what ends the run after it, or None."""
        began = time.monotonic()
        state, info = self._exchange(t)
        spent = self.run.server.traffic.drain_all()
        self.evaluation = self._evaluated(state, t, info)
        info = self._with_explosion(info)
        done = _with_spent(self.done, spent)
        # What was sent before the first round is the first round's.
        of_round = Spent(done.bytes_down, done.bytes_up, done.passes, done.exchanges) if t == 1 else spent
        record = _record(self.run, t, info, self.evaluation, self._clusters, self._mixtures, of_round)
        self._clusters.update(record.assignment)
        self._mixtures.update(record.mixtures)
        best = _best(self.run, t, state, record, done.best)
        seconds = time.monotonic() - began
        record = replace(record, seconds=round(seconds, 4))
        self.history.append(record)
        total, server = done.seconds + seconds, self.run.server.state()
        done = replace(done, round=t, state=state, client_states={}, seconds=total)
        self.done = replace(done, server=server, best=best, last=None)
        stop = self.run.limits.reached(self.history, self.done)
        self._keep(record, info, stop)
        return self._follow(record, info, stop)

    def _exchange(self, t: int) -> tuple[Any, Info]:
        """The method's round, and its report with what the run has to add to it."""
        run, server = self.run, self.run.server
        if run.before_round:
            run.before_round(t)
        changed = run.enter_round(t) if run.enter_round else []
        server.aggregation = replace(server.aggregation, round=t)
        state, info = run.method.round(self.done.state, t, server)
        info = _with_changed(_with_cut(_with_rule(info, t, server), server), changed)
        return state, info_in_units(info, run.loss_unit)

    def _evaluated(self, state: Any, t: int, info: Info) -> Evaluation | None:
        """The evaluation of all clients or of the participants, whichever is due."""
        if self.run.scores_everybody(t, info):
            return _evaluate(self.run, state, t)
        return _evaluate_participants(self.run, state, t) if self.run.evaluate_every == "auto" else None

    def _with_explosion(self, info: Info) -> Info:
        """The report, with a warning where the loss has exploded."""
        if self.evaluation is None:
            return info
        means = self.evaluation.means or metrics.spreads(self.evaluation.scores)
        event = self._watch.event(means.get("loss", Spread()).mean)
        return replace(info, events=[*info.events, event]) if event else info

    def _keep(self, record: RoundRecord, info: Info, stop: Event | None) -> None:
        """Write the round, and a checkpoint if it is time for one."""
        if self.store is None:
            return
        for matrix in info.matrices:
            self.store.write_matrix(matrix, record.round)
        self.store.append_history(record)
        pause_over = time.monotonic() - self._saved_at >= checkpoint_pause(self._cost_of_saving)
        is_last = stop is not None or record.round == self.run.server.rounds
        if self.run.save_every_round or pause_over or is_last:
            self.save()

    def save(self) -> None:
        """Write a checkpoint, if the run is kept."""
        if self.store:
            began = time.monotonic()
            self.store.save_checkpoint(replace(self.done, client_states=self.run.engine.client_states()))
            self._saved_at = time.monotonic()
            self._cost_of_saving = self._saved_at - began

    def _follow(self, record: RoundRecord, info: Info, stop: Event | None) -> Event | None:
        """Call the callbacks, any of which may end the run."""
        try:
            wanted = self.followers.round(record, info.events)
        except CallbackError as problem:
            raise _with_result(problem, self) from problem.__cause__
        if wanted is None or stop is not None:
            return stop
        self.save()
        return wanted

    def full_evaluation(self) -> Evaluation:
        """The last evaluation, if it was of all clients; else one that is."""
        if self.evaluation is None or self.evaluation.participants_only:
            self.evaluation = _evaluate(self.run, self.done.state, self.done.round)
        return self.evaluation


def _taken_up(run: Run, done: Checkpoint, history: History, store: Store | None) -> Checkpoint:
    """The checkpoint to go on from: of a run that had ended early, the last round's, not the one it ended with."""
    if store:
        store.reopen()
    if done.last is None:
        return done
    run.engine.restore_client_states(done.last.client_states)
    if history[-1].restored is not None:
        _amend(history, replace(history[-1], restored=None), store)
    return replace(done, state=done.last.state, client_states=done.last.client_states, last=None)


def _amend(history: History, record: RoundRecord, store: Store | None) -> None:
    """Replace the last record."""
    history[-1] = record
    if store:
        store.amend_history(record)


def _best(run: Run, t: int, state: Any, record: RoundRecord, best: KeptRound | None) -> KeptRound | None:
    """The best round so far by validation data, with copies of its states: a method may go on with the originals."""
    if run.limits.patience is None or not record.validation or not run.limits.is_better(record.validation, best):
        return best
    value = record.validation[run.limits.monitor].mean
    return KeptRound(t, copy.deepcopy(state), copy.deepcopy(run.engine.client_states()), value)


def _end(progress: Progress, stop: Event | None) -> Result:
    """End a run after all its rounds, or where it was stopped: the best round's models, if it kept them."""
    run, store, history = progress.run, progress.store, progress.history
    if progress.done.round >= run.server.rounds:
        stop = None  # it did all there was to do
    last = progress.done.last or KeptRound(progress.done.round, progress.done.state, run.engine.client_states())
    restoring, restored = _restore_best(progress)
    events = [event for event in (stop, restoring) if event is not None]
    _close_last_record(history, events, restored, store)
    _finish(progress, last, restored)
    evaluation = progress.full_evaluation()
    if history and (served := served_elsewhere(evaluation.assignment)):
        _amend(history, _as_served(history[-1], evaluation, served), store)
        events += served
    result = _conclude(run, progress.done, history, evaluation, store, stop)
    _report_end(progress, events, result)
    return result


def _restore_best(progress: Progress) -> tuple[Event | None, int | None]:
    """Put the best round's models back, if another was best: what to record of it, and the round if that was done."""
    run, best = progress.run, progress.done.best
    if best is None or best.round >= progress.done.round:
        return None, None
    why_not = _cannot_restore(run, best)
    if why_not is not None:
        return Event(RESTORED, why_not, {"round": best.round}), None
    run.engine.restore_client_states(best.client_states)
    progress.done, progress.evaluation = replace(progress.done, state=best.state), None
    text = f"the models are those of round {best.round}, best by validation {run.limits.monitor} ({best.value:.4g})"
    return Event(RESTORED, text, {"round": best.round}), best.round


def _close_last_record(history: History, events: Sequence[Event], restored: int | None, store: Store | None) -> None:
    """Write into the last record how the run ended, in place of what a run that was resumed had there."""
    if not history or not (events or history[-1].restored is not None):
        return
    others = [event for event in history[-1].events if event.kind not in (STOPPED, RESTORED)]
    written = [EventRecord(event.kind, event.text, to_json(event.details)) for event in events]
    record = replace(history[-1], events=[*others, *written], restored=restored)
    if record != history[-1]:
        _amend(history, record, store)


def _finish(progress: Progress, last: KeptRound, restored: int | None) -> None:
    """Let the method finish, and keep the state it ends with beside the `last` round's, to resume from."""
    run, server = progress.run, progress.run.server
    finish = getattr(run.method, "finish", None)
    if finish:
        progress.done = replace(progress.done, state=finish(progress.done.state, server))
        progress.evaluation = None
    done = progress.done
    if progress.store and (finish or restored is not None):
        # The finished state is stored, but not its bytes: they are counted again if this is done again.
        going_on = last if done.round < server.rounds or restored is not None else None
        progress.store.save_checkpoint(replace(done, client_states=run.engine.client_states(), last=going_on))
    progress.done = _with_spent(done, server.traffic.drain_all())


def _report_end(progress: Progress, events: Sequence[Event], result: Result) -> None:
    """Call the callbacks for the last time; the error of one has the result."""
    try:
        for event in events:
            progress.followers.event(progress.done.round, event)
        progress.followers.end(result)
    except CallbackError as problem:
        problem.result = result
        problem.args = (f"{problem}: the run is complete, its result is in the error's `result`",)
        raise


def _cannot_restore(run: Run, best: KeptRound) -> str | None:
    """Why the models of the best round cannot be put back, or None."""
    if run.method.assignment(best.state, run.server).private and not best.client_states:
        return f"round {best.round} was best, but the clients keep layers of their own: the last models stay"
    return None


def _with_result(problem: CallbackError, progress: Progress) -> CallbackError:
    """The error of a callback, with the result so far; the run's folder is left as it must be to resume."""
    go_on = "its result so far is in the error's `result`"
    progress.save()
    if progress.store:
        go_on = f"correct it, then go on with coterie.resume({str(progress.store.path)!r}); {go_on}"
    done = progress.done
    problem.result = _conclude(progress.run, done, progress.history, progress.full_evaluation(), None, None)
    problem.args = (f"{problem} after round {done.round}: {go_on}",)
    return problem


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


def _as_served(record: RoundRecord, evaluation: Evaluation, events: Sequence[Event]) -> RoundRecord:
    """The last round's record with the clients' models as they are given in the end: the same numbers as in tables."""
    clusters = []
    for cluster in record.clusters:
        own = metrics.spreads([score for score in evaluation.scores if score.cluster == cluster.id])
        means = {name: spread.mean for name, spread in own.items()} if cluster.metrics else {}
        clusters.append(replace(cluster, metrics=to_json(means)))
    told = [known for known in record.events if known.kind != FALLBACK]  # a resumed run has told of it before
    return replace(
        record,
        clusters=clusters,
        metrics=evaluation.spreads,
        events=[*told, *(EventRecord(event.kind, event.text, to_json(event.details)) for event in events)],
    )


def _with_rule(info: Info, t: int, server: Server) -> Info:
    """The first round's report, with how updates become one where that is not the plain weighted mean."""
    text = server.aggregation.describe()
    if t != 1 or not text:
        return info
    return replace(info, events=[Event("aggregation", f"updates are combined by choice: {text}"), *info.events])


def _with_cut(info: Info, server: Server) -> Info:
    """The round's report, with whose updates were longer than the run's limit."""
    clients = server.report_shortened()
    if not clients:
        return info
    named = ", ".join(clients[:5]) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
    text = f"longer than the run's limit and shortened to it: the updates of {named}"
    return replace(info, events=[*info.events, Event("clipped", text, {"clients": clients})])


def _with_changed(info: Info, clients: Sequence[str]) -> Info:
    """The round's report, with who holds other data from this round on; the method is not told."""
    if not clients:
        return info
    named = ", ".join(clients[:5]) + (f" and {len(clients) - 5} more" if len(clients) > 5 else "")
    event = Event(CHANGED, f"other data from this round on: {named}", {"clients": list(clients)})
    return replace(info, events=[*info.events, event])


def checkpoint_pause(cost: float) -> float:
    """The least seconds between two checkpoints, if one takes `cost`: they may slow a run down by a twentieth.

    Rounds since the last one are simply done again after a kill.
    """
    return max(2.0, 20 * cost)


def _evaluate(run: Run, state: Any, t: int) -> Evaluation:
    """The clients' models as things stand, and their metrics; looking at them is no part of the method's traffic."""
    assignment = run.method.assignment(state, run.server)
    if assignment.hidden is not None:
        return _evaluate_hidden(run, assignment)
    metrics.check_partition(assignment.members, run.server.clients)
    scores = run.score(assignment, t)
    validation = run.score(assignment, t, part="validation") if run.validate else []
    run.server.traffic.drain()
    return Evaluation(assignment, scores, validation=validation)


def _evaluate_hidden(run: Run, assignment: Assignment) -> Evaluation:
    """Means over all clients of models that only they know they chose."""
    assert assignment.hidden is not None
    score = partial(metrics.hidden_spreads, assignment.hidden, run.engine, extra=run.metrics)
    means, held_out = (
        means_in_units(score(part), run.loss_unit) if part == "test" or run.validate else {}
        for part in ("test", "validation")
    )
    run.server.traffic.drain()
    return Evaluation(assignment, [], means=means, validation_means=held_out)


def _evaluate_participants(run: Run, state: Any, t: int) -> Evaluation:
    """What the clients' models are worth to those that took part in the round."""
    assignment = run.method.assignment(state, run.server)
    scores = run.score(assignment, t, run.server.participants(t))
    run.server.traffic.drain()
    return Evaluation(assignment, scores, participants_only=True)


def _record(
    run: Run,
    t: int,
    info: Info,
    evaluation: Evaluation | None,
    known: Mapping[str, int | None],
    mixed: Mapping[str, Mapping[int, float]],
    spent: Spent,
) -> RoundRecord:
    """The round's record; `known` is the cluster of every client as recorded so far, `mixed` the mixtures."""
    everybody = evaluation if evaluation and not evaluation.participants_only else None
    return RoundRecord(
        round=t,
        clusters=_clusters(info, evaluation),
        bytes=Bytes(spent.up, spent.down),
        seconds=0.0,
        metrics=evaluation.spreads if evaluation else {},
        validation=evaluation.validation_spreads if evaluation else {},
        participants_only=evaluation is not None and evaluation.participants_only,
        assignment=_changes(everybody.assignment, known) if everybody else {},
        mixtures=_mixture_changes(everybody.assignment, mixed) if everybody else {},
        splits=[_split(split) for split in info.splits],
        events=[EventRecord(event.kind, event.text, to_json(event.details)) for event in info.events],
        faults=[FaultRecord(fault.client, fault.reason) for fault in run.engine.faults()],
        epsilon=_epsilon(run.server, t),
        passes=_passes(run, spent.passes),
        exchanges=spent.exchanges,
    )


def _passes(run: Run, counted: float) -> float | None:
    """Passes for the records; None where clients' work is not seen."""
    return None if run.engine.remote else round(counted, 3)


def _with_spent(done: Checkpoint, spent: Spent) -> Checkpoint:
    """The checkpoint with what was spent since."""
    return replace(
        done,
        bytes_down=done.bytes_down + spent.down,
        bytes_up=done.bytes_up + spent.up,
        passes=done.passes + spent.passes,
        exchanges=done.exchanges + spent.exchanges,
    )


def _split(split: ClusterSplit) -> SplitRecord:
    sides = [list(side) for side in split.members]
    return SplitRecord(split.cluster, list(split.children), sides, to_json(split.evidence))


def _epsilon(server: Server, rounds: int) -> float | None:
    """What so many rounds give away of any one client, where noise was asked for."""
    return None if server.user_privacy is None else round(server.user_privacy.epsilon(rounds), 6)


def _storable(spreads: Mapping[str, Spread]) -> dict[str, Spread]:
    """The same spreads with None for what JSON cannot hold."""
    return {name: Spread(**to_json(spread)) for name, spread in spreads.items()}


def _clusters(info: Info, evaluation: Evaluation | None) -> list[ClusterRecord]:
    """The clusters of a round: what the method saw of each and, where it was evaluated, their members' metrics."""
    seen = {position if c.id is None else c.id: c for position, c in enumerate(info.clusters)}
    if evaluation is None:
        return [_cluster(number, cluster.members, cluster, {}) for number, cluster in seen.items()]
    assignment = evaluation.assignment
    found = []
    for number, size in zip(assignment.cluster_ids, assignment.sizes, strict=True):
        own = [score for score in evaluation.scores if score.cluster == number]
        few = len(assignment.members) <= MOST_CLUSTERS_SCORED
        means = {name: spread.mean for name, spread in metrics.spreads(own).items()} if few else {}
        found.append(_cluster(number, size, seen.get(number), means))
    return found


def _cluster(number: int, members: int, seen: ClusterInfo | None, means: Mapping[str, float | None]) -> ClusterRecord:
    seen = seen or ClusterInfo(members)
    values = to_json([seen.train_loss, seen.mean_norm, seen.max_norm, dict(means), dict(seen.thresholds)])
    return ClusterRecord(number, members, *values)


def _changes(assignment: Assignment, known: Mapping[str, int | None]) -> dict[str, int | None]:
    """Clients whose cluster is another than what is known, and None for those that left."""
    changed: dict[str, int | None] = {}
    for client in assignment.served():
        if known.get(client.client) != client.cluster:
            changed[client.client] = client.cluster
    gone = known.keys() - {member for members in assignment.members for member in members} if known else set()
    return changed | {client: None for client, number in known.items() if number is not None and client in gone}


def _mixture_changes(assignment: Assignment, known: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
    """Mixtures in hundredths that are others than what is known; an empty one where a client has one model again."""
    changed = {}
    for client in assignment.served():
        mixture = _hundredths(client.mixture)
        if mixture != known.get(client.client, {}):
            changed[client.client] = mixture
    return changed


def _hundredths(mixture: Mapping[int, float]) -> dict[int, float]:
    """A mixture's weights in hundredths, without those that round to none."""
    return {number: rounded for number, weight in mixture.items() if (rounded := round(weight, 2))}


def _conclude(
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
        clusters=summary.clusters,
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
        table=make_table(run.table),
        placing=run.placing,
    )
    if store:
        store.save_result(result, files if run.save_models else {}, result.private if run.save_models else {})
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
        epsilon=_epsilon(server, done.round),
        delta=None if server.user_privacy is None else server.user_privacy.delta,
        warnings=warnings_of(history),
        validation=evaluation.validation_spreads,
        stopped=None if stop is None else stop.text,
        best_round=_best_round(done, history),
        hidden_sizes=list(assignment.hidden.sizes) if assignment.hidden else None,
        train_samples=sum(run.engine.samples.values()),
        passes=_passes(run, done.passes),
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
    held_out = {score.client: score for score in evaluation.validation}
    rows = []
    evaluation.scores.reverse()
    while evaluation.scores:
        score = evaluation.scores.pop()
        constant = run.constant(score.client) if run.constant else None
        rows.append(_client(score, held_out.get(score.client), private, constant))
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


def _client(
    score: ClientScore, held_out: ClientScore | None, private: PrivateLayers, constant: float | None
) -> ClientRecord:
    model = model_file(score.model) if private.here else None
    own = score.client in private.vectors or not private.here
    validation = {} if held_out is None else to_json(dict(held_out.metrics))
    return ClientRecord(
        score.client,
        score.cluster,
        model,
        score.samples,
        to_json(dict(score.metrics)),
        own,
        validation=validation,
        mixture={model_file(number): weight for number, weight in score.mixture.items()},
        constant=to_json(constant),
    )


def _personalised(
    run: Run, assignment: Assignment, summary: Summary, rows: list[ClientRecord]
) -> tuple[Summary, list[ClientRecord]]:
    """FedCUAU's two measures, for any method; each client's fine-tuned accuracy is added to its row.

    The first cluster's model is judged on everybody's test data only where it is a whole model, without private layers.
    """
    server = run.server
    training = server.schedule.at(summary.rounds)
    scores = personalised(assignment, run.engine, training, server.seed, epochs=run.personalise)
    after = {score.client: score.accuracy[1] for score in scores}
    rows = [replace(row, personalised=to_json(after.get(row.client))) for row in rows]
    initial = None if assignment.private else global_accuracy(assignment.models[0], run.engine)
    spread = Spread(**to_json(Spread.of(list(after.values()))))
    return replace(summary, initial=to_json(initial), personalised=spread), rows
