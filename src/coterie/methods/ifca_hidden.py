"""IFCA on secure sums that hide the choices too: the server learns how many clients chose each model, not who.

A round is two sums over everybody. The first counts the choices. The second has a block for each model, in which a
client has zeros unless it chose that model; a model that fewer clients chose than a sum may be of stays closed and is
kept as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.aggregation import WeightedSum
from coterie.methods.server import Server
from coterie.tasks import CountChoice, Request, TrainHidden
from coterie.trainers.base import Training


class HiddenRound(NamedTuple):
    """The sums of the models' updates, each by its clients' number; how many chose each; their mean loss."""

    sums: list[WeightedSum]
    sizes: list[int]
    loss: float


def kept_name(restart: int) -> str:
    """Where clients keep their choice of a restart's model."""
    return f"choice {restart}"


def check_hidden(server: Server) -> None:
    """Refuse a run in which hidden choices would be seen after all."""
    if not server.engine.secure:
        raise ConfigError("hide_choice=True hides choices in secure sums: give secure_sums=True too")
    if server.participation < 1:
        raise ConfigError(
            f"hide_choice=True with participation={server.participation}: numbers of choices among ever other clients "
            "tell choices apart: use participation=1"
        )


def hidden_round(models: Tensor, how: Training, kept: str, t: int, server: Server) -> HiddenRound:
    """One round over models `(k, d)`, with the choices kept by the clients under the name `kept`."""
    clients = server.participants(t)
    counting = [Request(client, CountChoice(models, kept)) for client in clients]
    counted, replies = server.sum_vectors(counting, [0] * len(counting))
    sums = [WeightedSum(models.shape[1]) for _ in models]
    if 0 not in counted:
        return HiddenRound(sums, [0] * len(models), float("inf"))
    sizes = [round(float(number)) for number in counted[0][:-1]]
    opened = tuple(j for j, size in enumerate(sizes) if size >= server.engine.least_in_sum)
    training = [
        Request(reply.client, TrainHidden(models, how, server.seed_of(t, reply.client), kept, opened))
        for reply in replies
    ]
    blocks, _ = server.sum_vectors(training, [0] * len(training)) if opened else ({}, [])
    if 0 in blocks:
        for j, block in enumerate(blocks[0].view(len(models), -1)):
            # By the numbers of the first sum: those of the second would tell the choice of a client that left between.
            sums[j].total, sums[j].weight, sums[j].count = block, *((sizes[j], sizes[j]) if j in opened else (0, 0))
    return HiddenRound(sums, sizes, float(counted[0][-1]) / max(1, len(replies)))


def closed(sizes: Sequence[int], least: int) -> list[int]:
    """The models that too few clients chose for their sum to be opened."""
    return [j for j, size in enumerate(sizes) if 0 < size < least]
