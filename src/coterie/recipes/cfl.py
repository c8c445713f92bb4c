"""What the CFL paper's experiments have in common: a run followed round by round, and its gaps and kept runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.clustering import Bipartition, bipartition, cosine_matrix, separation_gap
from coterie.federation import Federation
from coterie.messages import Reply
from coterie.methods import Event
from coterie.recipes.base import Study
from coterie.runs.api import resume, run
from coterie.runs.assemble import assemble
from coterie.runs.config import RunConfig, make_config
from coterie.runs.loop import Run
from coterie.runs.result import Result
from coterie.tasks import Gradient


class Separation(NamedTuple):
    """How far clients' vectors stand apart at one model: the gap g(α), and whether the best split tears no group."""

    gap: float
    correct: bool


def study_config(study: Study, seed: int, **options: Any) -> RunConfig:
    """The configuration of a run of this study."""
    return make_config({"seed": seed, "data_dir": study.data_dir, "workers": study.workers} | options)


def followed(config: RunConfig, federation: Federation | None = None) -> Iterator[tuple[int, Run, Any]]:
    """Do a run and give (round, run, state) after every round, for those who want to look at it on the way."""
    prepared, _ = assemble(config, federation=federation)
    try:
        state = prepared.method.start(prepared.server)
        for t in range(1, prepared.server.rounds + 1):
            state, _ = prepared.method.round(state, t, prepared.server)
            yield t, prepared, state
    finally:
        prepared.engine.close()


def separation_by_updates(prepared: Run, model: Tensor, t: int, members: Sequence[str]) -> Separation:
    """How the members' weight-updates (eq. 47) separate when they train from a model in round `t`."""
    return _separation(compared(prepared.server.train(members, model, t), prepared), prepared, members)


def separation_by_gradients(prepared: Run, model: Tensor, members: Sequence[str]) -> Separation:
    """How the members' full gradients (eq. 46) separate at a model."""
    return _separation(compared(prepared.server.ask_all(members, Gradient(model)), prepared), prepared, members)


def _separation(vectors: Tensor, prepared: Run, members: Sequence[str]) -> Separation:
    group_of = dict(zip(prepared.server.clients, prepared.groups or (), strict=True))
    groups = np.array([group_of[client] for client in members])
    similarity = cosine_matrix(vectors)
    return Separation(separation_gap(similarity, groups), is_correct(bipartition(similarity), groups))


def is_correct(sides: Bipartition, groups: npt.NDArray[np.int64]) -> bool:
    """Does a split tear no group (Definition 1)?"""
    return not len(np.intersect1d(groups[sides.first], groups[sides.second]))


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
