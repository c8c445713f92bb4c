"""The loop of a run: round after round, each recorded, evaluated and checkpointed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from coterie.engines.base import Engine
from coterie.methods import Assignment, Event, Info, Method, Server
from coterie.runs import metrics
from coterie.runs.folder import Checkpoint, RunFolder
from coterie.runs.personalised import global_accuracy, personalised
from coterie.runs.result import History, Result
from coterie.tasks import with_private


class Callback(Protocol):
    """Someone who follows a run: a progress bar, a tracker."""

    def on_start(self, run: Run, done: int) -> None:
        """The run begins, or goes on after `done` rounds."""
        ...

    def on_event(self, t: int, event: Event) -> None:
        """Something worth telling happened in round `t`."""
        ...

    def on_round(self, record: dict[str, Any]) -> None:
        """A round is done; `record` is its line of the history."""
        ...

    def on_end(self, result: Result) -> None:
        """The run is complete."""
        ...


@dataclass(frozen=True)
class Run:
    """A method on a federation (through an engine), ready to go."""

    method: Method
    server: Server
    architecture: Callable[[int], nn.Module]
    groups: Sequence[int] | None
    """Hidden groups in the order of the clients: for the metrics only, the method never sees this object."""
    labels: dict[str, Any]
    """What the summary says of the run: method, scenario, model, seed."""
    model_shape: dict[str, Any]
    """What is needed to make the model again without the data: its name, input shape, classes and input type."""
    evaluate_every: int = 1
    save_models: bool = True
    personalise: int = 0
    """Local epochs of every client's own fine-tuning after the last round; 0 leaves it out."""
    save_every_round: bool = False
    """Checkpoint after every round and before the first, however fast they are."""
    groups_now: Callable[[], Sequence[int] | None] | None = None
    """The hidden groups in the end, in place of `groups`, where clients come and go."""

    @property
    def engine(self) -> Engine:
        """Where the clients' work runs."""
        return self.server.engine


def execute(run: Run, folder: RunFolder | None = None, callbacks: Sequence[Callback] = ()) -> Result:
    """Do a run from its last checkpoint, if the folder has one, to its end."""
    server, method = run.server, run.method
    checkpoint = folder.checkpoint() if folder else None
    if checkpoint is None:
        checkpoint = Checkpoint(0, method.start(server), {}, *server.ledger.read(), seconds=0.0)
        if folder and run.save_every_round:
            folder.save_checkpoint(checkpoint)
    else:
        run.engine.restore_client_states(checkpoint.client_states)
    history = History(folder.rewind_history(checkpoint.round) if folder else [])
    if folder:
        folder.write_json("model.json", run.model_shape)
    for callback in callbacks:
        callback.on_start(run, checkpoint.round)

    state, done, seconds = checkpoint.state, checkpoint.round, checkpoint.seconds
    down, up = checkpoint.bytes_down, checkpoint.bytes_up
    last_save, cost = time.monotonic(), 0.0
    for t in range(done + 1, server.rounds + 1):
        began = time.monotonic()
        if refresh := getattr(run.engine, "refresh", None):
            refresh()  # on a network clients come and go, but between rounds only
        state, info = method.round(state, t, server)
        sent_down, sent_up = server.ledger.read()
        down, up = down + sent_down, up + sent_up
        record: dict[str, Any] = {"round": t, "bytes": {"up": sent_up, "down": sent_down}}
        if t % run.evaluate_every == 0 or t == server.rounds:
            assignment = method.assignment(state, server)
            metrics.check_partition(assignment.members, server.clients)
            record |= _evaluated(assignment, info, run)
            server.ledger.read()  # looking at the result is not part of the method's communication
        else:
            record["clusters"] = [asdict(cluster) for cluster in info.clusters]
        record["events"] = [asdict(event) for event in info.events]
        record["faults"] = [fault._asdict() for fault in run.engine.faults()]
        spent = time.monotonic() - began
        seconds += spent
        record["seconds"] = round(spent, 4)
        record = metrics.plain(record)
        history.append(record)
        if folder:
            folder.append_history(record)
            saving = time.monotonic()
            if run.save_every_round or saving - last_save >= checkpoint_pause(cost) or t == server.rounds:
                folder.save_checkpoint(Checkpoint(t, state, run.engine.client_states(), down, up, seconds))
                last_save = time.monotonic()
                cost = last_save - saving
        for callback in callbacks:
            for event in info.events:
                callback.on_event(t, event)
            callback.on_round(record)

    if finish := getattr(method, "finish", None):
        state = finish(state, server)
        if folder:
            # The folder gets the finished state, but not its bytes: they are counted again if this is done again.
            folder.save_checkpoint(Checkpoint(server.rounds, state, run.engine.client_states(), down, up, seconds))
        sent_down, sent_up = server.ledger.read()
        down, up = down + sent_down, up + sent_up
    result = _conclude(run, state, history, (down, up), seconds, folder)
    for callback in callbacks:
        callback.on_end(result)
    return result


def checkpoint_pause(cost: float) -> float:
    """The least seconds between two checkpoints, if one takes `cost`: they may slow a run down by a twentieth.

    Rounds since the last one are simply done again after a kill.
    """
    return max(2.0, 20 * cost)


def _evaluated(assignment: Assignment, info: Info, run: Run) -> dict[str, Any]:
    """The round's test metrics: over all clients, and for each cluster beside what the method told of it."""
    scores = metrics.score_clients(assignment, run.engine)
    told = list(info.clusters) if len(info.clusters) == len(assignment.members) else [None] * len(assignment.members)
    clusters = []
    for i, members in enumerate(assignment.members):
        own = [score for score in scores if score.cluster == i] if len(assignment.members) <= 64 else []
        cluster = told[i]
        clusters.append(
            (asdict(cluster) if cluster else {})
            | {
                "members": len(members),
                "loss": metrics.mean([s.loss for s in own]),
                "accuracy": metrics.mean([s.accuracy for s in own]),
            }
        )
    return {
        "clusters": clusters,
        "accuracy": metrics.spread([score.accuracy for score in scores]),
        "loss": {"mean": metrics.mean([score.loss for score in scores])},
    }


def _conclude(
    run: Run, state: Any, history: History, sent: tuple[int, int], seconds: float, folder: RunFolder | None
) -> Result:
    server = run.server
    assignment = run.method.assignment(state, server)
    server.ledger.read()
    metrics.check_partition(assignment.members, server.clients)
    scores = metrics.score_clients(assignment, run.engine)
    clusters = [list(members) for members in assignment.members]
    groups = run.groups_now() if run.groups_now else run.groups
    summary = run.labels | {
        "rounds": server.rounds,
        "clients": len(server.clients),
        "clusters": clusters,
        "accuracy": metrics.spread([score.accuracy for score in scores]),
        "loss": {"mean": metrics.mean([score.loss for score in scores])},
        "ari": metrics.partition_score(clusters, server.clients, groups),
        "bytes": {"up": sent[1], "down": sent[0]},
        "seconds": round(seconds, 3),
    }
    rows = metrics.scores_table(scores)
    models = [run.engine.reveal(model) for model in assignment.models]
    if run.personalise:
        summary |= _personalised(run, assignment, rows)
    summary = metrics.plain(summary)
    if folder:
        if run.save_models:
            folder.save_models(models, run.engine.plain_layout)
        folder.write_json("clients.json", rows)
        folder.write_json("summary.json", summary)
    path: Path | None = folder.path if folder else None
    layout, given = run.engine.plain_layout, _given(assignment, run.engine)
    return Result(summary, clusters, models, history, rows, state, layout, run.architecture, path, given)


def _given(assignment: Assignment, engine: Engine) -> dict[str, Tensor]:
    """The vectors of clients that use another model than their cluster's, or private layers of their own."""
    given = {client: engine.reveal(model) for client, model in assignment.exceptions.items()}
    if assignment.private:
        spans, states = engine.layout.select(assignment.private), engine.client_states()
        for model, members in zip(assignment.models, assignment.members, strict=True):
            for client in members:
                given[client] = with_private(given.get(client, model), spans, states.get(client, {}))
    return given


def _personalised(run: Run, assignment: Assignment, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """FedCUAU's two measures, for any method; each client's fine-tuned accuracy is added to its row.

    The first cluster's model is judged on everybody's test data only where it is a whole model, without private layers.
    """
    server = run.server
    training = server.schedule.at(server.rounds)
    scores = personalised(assignment, run.engine, training, server.seed, epochs=run.personalise)
    after = {score.client: score.accuracy[1] for score in scores}
    for row in rows:
        row["personalised"] = metrics.plain(after.get(row["client"]))
    initial = None if assignment.private else global_accuracy(assignment.models[0], run.engine)
    return {"initial": initial, "personalised": metrics.spread(list(after.values()))}
