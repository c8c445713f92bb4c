"""Choices among k models on secure sums that hide them too: the server learns how many clients chose each, not who.

A round is two sums over all clients. The first counts the choices. The second has a block for each model, in which a
client has zeros unless it chose that model; a model that fewer clients chose than a sum may be of stays closed and is
kept as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.aggregation import WeightedSum
from coterie.methods.averaging import cluster_info
from coterie.methods.base import Assignment, Event, Hidden, Info
from coterie.methods.choices import idle_after, next_try, unused_events
from coterie.methods.placing import lowest_loss
from coterie.methods.server import Server
from coterie.snapshot import saved
from coterie.tasks import CountChoice, Reply, Request, TrainHidden
from coterie.trainers.base import SumNoise, Training


@saved
class HiddenState:
    """The models `(k, d)`, and how many clients chose each."""

    models: Tensor
    idle: list[int]
    """For each model, rounds in a row in which no client chose it."""
    sizes: list[int] = field(default_factory=list)
    """How many clients chose each model in the last round; empty before the first."""
    loss: float = float("inf")
    draw: int = 0

    @property
    def kept(self) -> str:
        """The name under which clients keep their choice."""
        return f"choice {self.draw}"


class HiddenChoices:
    """A method whose clients choose among k models, with the choices known to the clients only.

    The method has `start(server, draw)` that gives `models`, and `averaged(models, sums, t, server, draw)`.
    """

    def __init__(self, method: Any) -> None:
        self.method = method

    def start(self, server: Server, draw: int = 0) -> HiddenState:
        check_hidden(server)
        models = self.method.start(server, draw).models
        return HiddenState(models, [0] * len(models), draw=draw)

    def round(self, state: HiddenState, t: int, server: Server) -> tuple[HiddenState, Info]:
        """The round where only the clients know what they chose."""
        found = hidden_round(state.models, server.schedule.at(t), state.kept, t, server)
        models = self.method.averaged(state.models, found.sums, t, server, state.draw)
        idle = idle_after(state.idle, found.sizes)
        events = unused_events(idle, next_try(self.method.init))
        if found.closed:
            few = f"fewer than {server.least_in_sum} clients"
            text = f"{len(found.closed)} models were chosen by {few}: they stay closed"
            events.append(Event("closed", text, {"models": found.closed}))
        infos = [
            replace(cluster_info(size, total, server, j), train_loss=None, max_norm=None)
            for j, (size, total) in enumerate(zip(found.sizes, found.sums, strict=True))
            if size
        ]
        return HiddenState(models, idle, found.sizes, found.loss, state.draw), Info(infos, events)

    def assignment(self, state: HiddenState, server: Server) -> Assignment:
        """The models that clients chose, and how many did; members are not known."""
        taken = [j for j, size in enumerate(state.sizes) if size] or [0]
        sizes = [state.sizes[j] if state.sizes else len(server.clients) for j in taken]
        hidden = Hidden(state.kept, state.models, sizes)
        return Assignment([state.models[j] for j in taken], [[] for _ in taken], ids=taken, hidden=hidden)

    def place(self, state: HiddenState, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The model with the lowest loss on each newcomer's data, among those that some client chose."""
        return lowest_loss({j: state.models[j] for j, size in enumerate(state.sizes) if size}, clients, server)


class HiddenRound(NamedTuple):
    """The sums of the models' updates, each by its clients' number; how many chose each; their mean loss.

    `closed` are the models that too few clients chose for their sum to be opened.
    """

    sums: list[WeightedSum]
    sizes: list[int]
    loss: float
    closed: list[int]


def check_hidden(server: Server) -> None:
    """Refuse a run in which hidden choices would be seen after all."""
    if not server.sums_only:
        raise ConfigError("hide_choice=True hides choices in secure sums: give secure_sums=True too")
    if server.participation < 1:
        raise ConfigError(
            f"hide_choice=True with participation={server.participation}: numbers of choices among ever other clients "
            "show single choices: use participation=1"
        )


def hidden_round(models: Tensor, how: Training, kept: str, t: int, server: Server) -> HiddenRound:
    """One round over models `(k, d)`, with the choices kept by the clients under the name `kept`.

    Under differential privacy both sums have noise, which hides few clients among all: so all models are opened, no
    loss is reported, and a mean is divided by the noisy number, by one at the least.
    """
    numbers, loss, clients = _count_choices(models, kept, t, server)
    sizes = [max(0, round(number)) for number in numbers]
    least = server.least_in_sum if server.user_privacy is None else 0
    opened = tuple(j for j, size in enumerate(sizes) if size >= least)
    tasks = {c: TrainHidden(models, how, server.seed_of(t, c), kept, opened) for c in clients}
    sums = [WeightedSum(models.shape[1]) for _ in models]
    closed = [j for j, size in enumerate(sizes) if 0 < size < least]
    for j, total in _opened_sums(tasks, opened, server).items():
        # By the number of the first sum: that of the second would show the choice of a client that left between.
        sums[j].weight = sizes[j] if server.user_privacy is None else max(1.0, numbers[j])
        sums[j].total, sums[j].count = total, sizes[j]
    return HiddenRound(sums, sizes, loss, closed)


def _count_choices(models: Tensor, kept: str, t: int, server: Server) -> tuple[list[float], float, list[str]]:
    """The first sum: every participant chooses, keeps its choice, and is counted.

    Returns:
        How many clients chose each model, with noise if there is any; their mean loss; who was counted.
    """
    privacy, k = server.user_privacy, len(models)
    task = CountChoice(models, kept, loss=privacy is None)
    requests = [Request(client, task) for client in server.participants(t)]
    noise = None if privacy is None else privacy.of_choices()
    counted, replies = _summed(requests, noise, server)
    if counted is None:
        return [0.0] * k, float("inf"), []
    loss = float("nan") if privacy is not None else float(counted[-1]) / max(1, len(replies))
    return counted[:k].tolist(), loss, [reply.client for reply in replies]


def _opened_sums(tasks: dict[str, TrainHidden], opened: tuple[int, ...], server: Server) -> dict[int, Tensor]:
    """The sums of the updates `(d,)` of the opened models."""
    noise = None if server.user_privacy is None else server.user_privacy.of_updates()
    requests = [Request(client, task) for client, task in tasks.items()] if opened else []
    blocks, _ = _summed(requests, noise, server)
    return {} if blocks is None else {j: blocks.view(-1, server.layout.size)[j] for j in opened}


def _summed(requests: Sequence[Request], noise: SumNoise | None, server: Server) -> tuple[Tensor | None, list[Reply]]:
    """The one sum over all clients, None where it did not come through, and who is in it."""
    if not requests:
        return None, []
    [total], replies = server.exchange(requests, weighting="uniform", noise=noise)
    return total.total if total.count else None, replies
