"""What the CFL paper's experiments have in common: a run followed round by round, and its gaps and kept runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.clustering import cosine_matrix, separation_gap
from coterie.methods import Event
from coterie.recipes.base import Study
from coterie.runs.api import resume, run
from coterie.runs.assemble import assemble
from coterie.runs.config import RunConfig, make_config
from coterie.runs.loop import Run
from coterie.runs.result import Result
from coterie.tasks import Gradient, Reply


class Gaps(NamedTuple):
    """The separation gap g(α) of clients at one model, by weight-updates (eq. 47) and by gradients (eq. 46)."""

    update: float
    gradient: float


def study_config(study: Study, seed: int, **options: Any) -> RunConfig:
    """The configuration of a run of this study."""
    return make_config({"seed": seed, "data_dir": study.data_dir, "workers": study.workers} | options)


def followed(config: RunConfig) -> Iterator[tuple[int, Run, Any]]:
    """Do a run and give (round, run, state) after every round, for those who want to look at it on the way."""
    prepared, _ = assemble(config)
    try:
        state = prepared.method.start(prepared.server)
        for t in range(1, prepared.server.rounds + 1):
            state, _ = prepared.method.round(state, t, prepared.server)
            yield t, prepared, state
    finally:
        prepared.engine.close()


def gaps_at(prepared: Run, model: Tensor, t: int) -> Gaps:
    """Both gaps of all clients at a model that they would train in round `t`."""
    server = prepared.server
    gradients = cosine_matrix(compared(server.ask_all(server.clients, Gradient(model)), prepared))
    return Gaps(update_gap(prepared, model, t, server.clients), separation_gap(gradients, prepared.groups or ()))


def update_gap(prepared: Run, model: Tensor, t: int, members: Sequence[str]) -> float:
    """The gap of the members' updates when they train from a model in round `t`."""
    group_of = dict(zip(prepared.server.clients, prepared.groups or (), strict=True))
    updates = compared(prepared.server.train(members, model, t), prepared)
    return separation_gap(cosine_matrix(updates), [group_of[client] for client in members])


def compared(replies: Iterator[Reply], prepared: Run) -> Tensor:
    """The replies' vectors `(clients, trainable)`."""
    width = prepared.engine.layout.trainable
    return torch.stack([reply.vector[:width] for reply in replies if reply.vector is not None])


class Teller:
    """Follows a run and says its splits, and every tenth round how it stands."""

    def __init__(self, study: Study) -> None:
        self.say = study.say

    def on_start(self, run: Run, done: int) -> None:
        if done:
            self.say(f"  goes on after round {done}")

    def on_event(self, t: int, event: Event) -> None:
        self.say(f"  round {t}: {event.text}")

    def on_round(self, record: dict[str, Any]) -> None:
        if record["round"] % 10 == 0 and "loss" in record:
            accuracy = record["accuracy"]["mean"]
            score = "" if accuracy is None else f"accuracy {accuracy:.3f}, "
            self.say(f"  round {record['round']}: {score}test loss {record['loss']['mean']:.3f}")

    def on_end(self, result: Result) -> None:
        pass


def kept_run(study: Study, key: str, config: RunConfig) -> Result:
    """The run of that name in the study's folder, gone on with if an earlier attempt began it."""
    folder = study.out / "runs" / key
    teller = [Teller(study)]
    if (folder / "config.json").exists():
        return resume(folder, data_dir=config.data_dir, workers=config.workers, callbacks=teller)
    return run(out=folder, callbacks=teller, **config.model_dump(exclude_unset=True))


def split_rounds(result: Result) -> list[int]:
    """The rounds in which a cluster was split, one entry a split."""
    return [record["round"] for record in result.history for event in record["events"] if event["kind"] == "split"]
