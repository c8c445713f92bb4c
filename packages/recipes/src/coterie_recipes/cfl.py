"""What the CFL paper's experiments have in common: a run followed round by round, and how clients separate in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie import Federation, Result
from coterie.clustering import Bipartition, bipartition, cosine_matrix, separation_gap
from coterie.runs import Run, RunConfig, assemble
from coterie.tasks import Gradient, Reply


class Separation(NamedTuple):
    """How well the groups separate at one model: the gap g(α), and whether the best split is correct."""

    gap: float
    correct: bool


def followed(config: RunConfig, federation: Federation | None = None) -> Iterator[tuple[int, Run, Any]]:
    """Do a run and give (round, run, state) after every round, its engine still open."""
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
    return _separation(
        trainable_vectors(prepared.server.ask(prepared.server.training_requests(members, model, t)), prepared),
        prepared,
        members,
    )


def separation_by_gradients(prepared: Run, model: Tensor, members: Sequence[str]) -> Separation:
    """How the members' full gradients (eq. 46) separate at a model."""
    replies = prepared.server.ask_all(members, Gradient(model))
    return _separation(trainable_vectors(replies, prepared), prepared, members)


def _separation(vectors: Tensor, prepared: Run, members: Sequence[str]) -> Separation:
    group_of = dict(zip(prepared.server.clients, prepared.groups or (), strict=True))
    groups = np.array([group_of[client] for client in members])
    similarity = cosine_matrix(vectors)
    return Separation(separation_gap(similarity, groups), is_correct(bipartition(similarity), groups))


def is_correct(sides: Bipartition, groups: npt.NDArray[np.int64]) -> bool:
    """Whether a split leaves every group whole (Definition 1)."""
    return not len(np.intersect1d(groups[sides.first], groups[sides.second]))


def trainable_vectors(replies: Iterable[Reply], prepared: Run) -> Tensor:
    """The trainable part of the replies' vectors, `(clients, trainable)`."""
    width = prepared.server.layout.trainable
    return torch.stack([reply.vector[:width] for reply in replies if reply.vector is not None])


def split_rounds(result: Result) -> list[int]:
    """The round of every split."""
    return [record.round for record in result.history for _ in record.splits]
