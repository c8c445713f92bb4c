"""IFCA on secure sums that hide the choices too: the server learns how many clients chose each model, not who.

A round is two sums over everybody. The first counts the choices. The second has a block for each model, in which a
client has zeros unless it chose that model; a model that fewer clients chose than a sum may be of stays closed and is
kept as it was.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.aggregation import WeightedSum
from coterie.methods.server import Server
from coterie.tasks import CountChoice, Request, TrainHidden
from coterie.trainers.base import Training


class HiddenRound(NamedTuple):
    """The sums of the models' updates, each by its clients' number; how many chose each; their mean loss.

    `closed` are the models that too few clients chose for their sum to be opened.
    """

    sums: list[WeightedSum]
    sizes: list[int]
    loss: float
    closed: list[int]


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
    """One round over models `(k, d)`, with the choices kept by the clients under the name `kept`.

    Under differential privacy both sums have noise, which hides few clients among all: so all models are opened, no
    loss is told, and a mean is divided by the noisy number, by one at the least.
    """
    clients, privacy = server.participants(t), server.user_privacy
    counting = [Request(client, CountChoice(models, kept, loss=privacy is None)) for client in clients]
    blur = None if privacy is None else privacy.of_choices()
    counted, replies = server.sum_vectors(counting, [0] * len(counting), blur)
    sums = [WeightedSum(models.shape[1]) for _ in models]
    if 0 not in counted:
        return HiddenRound(sums, [0] * len(models), float("inf"), [])
    numbers = [float(number) for number in counted[0][: len(models)]]
    sizes = [max(0, round(number)) for number in numbers]
    least = server.engine.least_in_sum if privacy is None else 0
    opened = tuple(j for j, size in enumerate(sizes) if size >= least)
    training = [
        Request(reply.client, TrainHidden(models, how, server.seed_of(t, reply.client), kept, opened))
        for reply in replies
    ]
    blur = None if privacy is None else privacy.of_updates()
    blocks, _ = server.sum_vectors(training, [0] * len(training), blur) if opened else ({}, [])
    if 0 in blocks:
        for j in opened:
            # By the numbers of the first sum: those of the second would tell the choice of a client that left between.
            sums[j].total, sums[j].count = blocks[0].view(len(models), -1)[j], sizes[j]
            sums[j].weight = sizes[j] if privacy is None else max(1.0, numbers[j])
    loss = float("nan") if privacy is not None else float(counted[0][-1]) / max(1, len(replies))
    return HiddenRound(sums, sizes, loss, [j for j, size in enumerate(sizes) if 0 < size < least])
