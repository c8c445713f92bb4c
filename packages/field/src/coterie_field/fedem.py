"""FedEM (Marfoq et al. 2021): clients are mixtures of a few models that all of them train.

Every client's data is taken for a mixture of M unknown distributions, with proportions π_i of its own. E-step: the
chance q_s(m) ∝ π_im exp(−loss of model m on sample s) that sample s came from distribution m; π_im becomes the mean
of q. M-step: the client trains every model on all of its samples, weighted by q. The server averages each model over
the clients, and a client predicts by the mixture π_i of the models.

Where the paper is silent or we differ:
* π_i is kept by the server, which sends it to the client and has it back: M numbers, so that clients keep no state
  and records can say who is served by what. In the authors' code it stays with the client;
* the loss is taken for the negative log-likelihood as it is, also the squared error (a Gaussian of variance 1/2);
* a client that was never asked has the weights of `place`: several E-steps from equal weights, the models held fixed;
* its cluster, for tables and the adjusted Rand index, is the model that weighs most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods import Assignment, ClusterInfo, Info, Needs, Server, WeightedSum, members_of, method, saved
from coterie.methods.averaging import assignment_of
from coterie.methods.published import Paper
from coterie.tasks import Reply, Request
from coterie_field.mixture_tasks import MixtureTraining, MixtureWeights
from coterie_field.papers import PAPERS

PLACING_STEPS = 20
"""E-steps by which a client finds its weights when the models are held fixed; one per round is enough in training."""

Weights = Mapping[str, Sequence[float]]
"""How much of each model every client has, by position; they sum to one but for rounding."""


@saved
class State:
    """The models `(M, d)`, the weights of each client that was asked, and what it reported of its labels, if it did."""

    models: Tensor
    weights: dict[str, tuple[float, ...]]
    counts: dict[str, Tensor]
    """Samples by model and label `(M, classes)`: FedRC's."""


def check_count(option: str, count: int, server: Server) -> None:
    """ConfigError for more models than there are samples to train them."""
    if count > (samples := sum(server.samples.values())):
        raise ConfigError(f"{option}={count} with {samples} training samples: ask for at most one model per sample")


@method("fedem")
class FedEM:
    """Clients are mixtures of a few models, which all of them train by EM."""

    paper: ClassVar[Paper] = PAPERS["fedem"]
    server_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs(tasks=(MixtureTraining, MixtureWeights))

    components: PositiveInt = 3
    """Number of models M."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in the mean of each model."""

    def start(self, server: Server) -> State:
        if server.schedule.at(1).keep_optimizer:
            raise ConfigError(
                f"keep_optimizer: a client trains {self.components} models, and keeps the state of one optimiser: "
                "leave it out"
            )
        check_count("components", self.components, server)
        return State(torch.stack([server.initial_model(m) for m in range(self.components)]), {}, {})

    def labels(self, state: State) -> Tensor | None:
        """The share of each label among the samples of each model `(M, classes)`, where it counts; here it does not."""
        return None

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        models, labels, size = state.models, self.labels(state), state.models.shape[1]
        equal = (1 / self.components,) * self.components
        requests = []
        for client in server.participants(t):
            own = torch.tensor(state.weights.get(client, equal), dtype=torch.float32)
            task = MixtureTraining(models, own, server.schedule.at(t), server.seed_of(t, client), labels)
            requests.append(Request(client, task))
        # All updates as one: a model that is not for a client hardly moves, so only together have they a norm.
        [total], replies = server.exchange(requests, weighting=self.weighting, size=self.components * size)
        updates = list(total.mean().view(-1, size))
        after = [server.step(model, update, m) for m, (model, update) in enumerate(zip(models, updates, strict=True))]
        weights = {reply.client: tuple(reply.values["weights"]) for reply in replies}
        counts = {reply.client: _bounded(reply) for reply in replies if "counts" in reply.values}
        state = State(torch.stack(after), state.weights | weights, state.counts | counts)
        return state, Info(mixture_infos(state.weights, replies, updates, server))

    def assignment(self, state: State, server: Server) -> Assignment:
        """Every client with its mixture; a client that was never asked is asked for its weights now."""
        absent = [client for client in server.clients if client not in state.weights]
        weights = state.weights | self._weights(state, absent, server)
        return mixture_assignment(state.models, weights, server)

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The model that accounts for most of each newcomer's data."""
        return {client: heaviest(weights) for client, weights in self._weights(state, clients, server).items()}

    def _weights(self, state: State, clients: Sequence[str], server: Server) -> dict[str, tuple[float, ...]]:
        task = MixtureWeights(state.models, PLACING_STEPS, self.labels(state))
        return {reply.client: tuple(reply.values["weights"]) for reply in server.ask_all(clients, task)}


def _bounded(reply: Reply) -> Tensor:
    """The counts that a client reported, which may sum to no more than the samples it has."""
    counts: Tensor = reply.values["counts"]
    return counts * min(1.0, reply.samples / max(float(counts.sum()), 1e-30))


def mixture_assignment(models: Tensor, weights: Weights, server: Server, private: tuple[str, ...] = ()) -> Assignment:
    """Clients that are served by mixtures of models `(k, d)`, each in the cluster of the one that weighs most.

    A client without weights has all models alike.
    """
    k = len(models)
    given = {client: weights.get(client, [1 / k] * k) for client in server.clients}
    heaviest_of = {client: heaviest(own) for client, own in given.items()}
    clusters = assignment_of(models, members_of(heaviest_of, server.clients, k))
    mixtures = {client: _normalised(own) for client, own in given.items()} if k > 1 else {}
    others = {j: model for j, model in enumerate(models) if j not in clusters.cluster_ids}
    return replace(clusters, private=private, served_by=mixtures, other_models=others)


def _normalised(weights: Sequence[float]) -> dict[int, float]:
    total = sum(weights)
    return {j: weight / total for j, weight in enumerate(weights)}


def heaviest(weights: Sequence[float]) -> int:
    """The position of the largest weight, the first of several."""
    return max(range(len(weights)), key=lambda j: (weights[j], -j))


def mixture_infos(
    weights: Weights, replies: Iterable[Reply], updates: Sequence[Tensor], server: Server
) -> list[ClusterInfo]:
    """Of each model, moved by its update `(d,)`: how many clients have most of it, and the loss that these reported."""
    home = {client: heaviest(weights[client]) for client in server.clients if client in weights}
    sums = [WeightedSum(0) for _ in updates]
    for reply in replies:
        if reply.client in home:
            sums[home[reply.client]].note(reply, server.weight(reply.client, "samples"))
    infos = []
    for j, (update, total) in enumerate(zip(updates, sums, strict=True)):
        norm = float(update[: server.layout.trainable].norm())
        infos.append(ClusterInfo(list(home.values()).count(j), total.mean_loss(), norm, id=j))
    return infos
