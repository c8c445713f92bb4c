"""The loop of a run: round after round, each evaluated, recorded and checkpointed.

It serves every engine: the simulator, Ray, a Flower grid, and the drop-in strategies of Flower apps.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coterie.engines.base import Traffic
from coterie.errors import CallbackError
from coterie.methods import Event, Info
from coterie.methods.needs import needs_of
from coterie.runs.callbacks import Callback, Followers
from coterie.runs.concluding import conclude
from coterie.runs.prepared import Run
from coterie.runs.recording import (
    Evaluation,
    as_served,
    changed_event,
    cut_event,
    evaluate,
    event_record,
    round_record,
    rule_event,
    served_elsewhere,
)
from coterie.runs.records import History, RoundRecord, Spread, mixtures
from coterie.runs.result import Result
from coterie.runs.stopping import RESTORED, STOPPED, ExplosionWatch
from coterie.runs.store import Checkpoint, KeptRound, Store
from coterie.runs.target_scaling import info_in_units


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
    progress.followers.call("on_start", run, done.round)
    del done  # or its models would stay for the whole run
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
        store.write_json("model.json", run.model_shape)
        if run.table is not None:
            store.write_json("table.json", run.table.to_json())


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
        of_round = Traffic(done.bytes_down, done.bytes_up, done.passes, done.exchanges) if t == 1 else spent
        record = round_record(self.run, t, info, self.evaluation, self._clusters, self._mixtures, of_round)
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
        rule = rule_event(server) if t == 1 else []
        events = [*rule, *info.events, *cut_event(server), *changed_event(changed)]
        return state, info_in_units(replace(info, events=events), run.loss_unit)

    def _evaluated(self, state: Any, t: int, info: Info) -> Evaluation | None:
        """The evaluation of all clients or of the participants, whichever is due."""
        if self.run.scores_all(t, info):
            return evaluate(self.run, state, t)
        if self.run.evaluate_every != "auto":
            return None
        return evaluate(self.run, state, t, self.run.server.participants(t))

    def _with_explosion(self, info: Info) -> Info:
        """The report, with a warning where the loss has exploded."""
        if self.evaluation is None:
            return info
        event = self._watch.event(self.evaluation.means.get("loss", Spread()).mean)
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
            self.evaluation = evaluate(self.run, self.done.state, self.done.round)
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
        _amend(history, as_served(history[-1], evaluation, served), store)
        events += served
    result = conclude(run, progress.done, history, evaluation, store, stop)
    _report_end(progress, events, result)
    return result


def _restore_best(progress: Progress) -> tuple[Event | None, int | None]:
    """Put the best round's models back, if another was best: what to record of it, and the round if that was done."""
    run, best = progress.run, progress.done.best
    if best is None or best.round >= progress.done.round:
        return None, None
    if run.method.assignment(best.state, run.server).private and not best.client_states:
        text = f"round {best.round} was best, but the clients keep layers of their own: the last models stay"
        return Event(RESTORED, text, {"round": best.round}), None
    run.engine.restore_client_states(best.client_states)
    progress.done, progress.evaluation = replace(progress.done, state=best.state), None
    text = f"the models are those of round {best.round}, best by validation {run.limits.monitor} ({best.value:.4g})"
    return Event(RESTORED, text, {"round": best.round}), best.round


def _close_last_record(history: History, events: Sequence[Event], restored: int | None, store: Store | None) -> None:
    """Write into the last record how the run ended, in place of what a run that was resumed had there."""
    if not history or not (events or history[-1].restored is not None):
        return
    others = [event for event in history[-1].events if event.kind not in (STOPPED, RESTORED)]
    record = replace(history[-1], events=[*others, *map(event_record, events)], restored=restored)
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
            progress.followers.call("on_event", progress.done.round, event)
        progress.followers.call("on_end", result)
    except CallbackError as problem:
        problem.result = result
        problem.args = (f"{problem}: the run is complete, its result is in the error's `result`",)
        raise


def _with_result(problem: CallbackError, progress: Progress) -> CallbackError:
    """The error of a callback, with the result so far; the run's folder is left as it must be to resume."""
    go_on = "its result so far is in the error's `result`"
    progress.save()
    if progress.store:
        go_on = f"correct it, then go on with coterie.resume({str(progress.store.path)!r}); {go_on}"
    done = progress.done
    problem.result = conclude(progress.run, done, progress.history, progress.full_evaluation(), None, None)
    problem.args = (f"{problem} after round {done.round}: {go_on}",)
    return problem


def checkpoint_pause(cost: float) -> float:
    """The least seconds between two checkpoints, if one takes `cost`: they may slow a run down by a twentieth.

    Rounds since the last one are simply done again after a kill.
    """
    return max(2.0, 20 * cost)


def _with_spent(done: Checkpoint, spent: Traffic) -> Checkpoint:
    """The checkpoint with what was spent since."""
    return replace(
        done,
        bytes_down=done.bytes_down + spent.down,
        bytes_up=done.bytes_up + spent.up,
        passes=done.passes + spent.passes,
        exchanges=done.exchanges + spent.exchanges,
    )
