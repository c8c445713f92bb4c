"""FedSEM (Xie et al. 2020, "Multi-center federated learning"): clusters of models by stochastic EM.

E-step: a client belongs to the centre nearest to its model (l2). M-step: a centre becomes the mean of its clients'
models. Clients train from their own centre, all from one model in the first round.

When only some clients train in a round, the others' last models can count as they are (a client never drawn still has
the first model), as in the code with which FLT's authors compare it, or not at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from coterie.errors import ConfigError, RunError
from coterie.methods.aggregation import Aggregation, WeightedSum, vector_of
from coterie.methods.averaging import assignment_of, members_of
from coterie.methods.base import Assignment, ClusterInfo, Info, method
from coterie.methods.needs import Needs
from coterie.methods.server import Server
from coterie.randomness import derive, numpy_generator
from coterie.snapshot import saved
from coterie.tasks import Reply
from coterie.trainers.threads import one_thread


@saved
class State:
    """The centres `(C, d)` (one, before the first round), who is in which, and the models that outlast their round."""

    centres: Tensor
    cluster_of: dict[str, int]
    models: dict[str, Tensor]
    """The last model of every client that was drawn so far, where all clients' models count."""


class Point(NamedTuple):
    """A model that is put in a cluster, the clients that have it, and what they weigh together."""

    clients: Sequence[str]
    model: Tensor
    weight: float


@method("fedsem")
class FedSEM:
    """Clusters by the distance of clients' models to cluster centres, improved in every round (stochastic EM)."""

    server_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs("must")

    clusters: PositiveInt = 5
    """Number of clusters C."""
    over: Literal["all", "participants"] = "all"
    """Whose models make the clusters: all clients' last ones, which the server keeps, or the round's participants'.

    With little participation, many late-comers' models stay nearest to the cluster of the models that never trained.
    Participants alone make the stronger baseline; clients never drawn then have the mean of the centres.
    """
    init: Literal["k-means", "random"] = "k-means"
    """The first round's clusters: k-means of the models, or dealt at random, from where groups can share a centre."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in its centre's mean: as in the methods it is compared with, or uniform."""

    def start(self, server: Server) -> State:
        drawn = len(server.participants(1))
        if self.clusters > drawn:
            raise ConfigError(
                f"clusters={self.clusters}, but {drawn} clients take part in the first round: ask for fewer clusters "
                "or more participation"
            )
        return State(server.initial_model()[None], {}, {})

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        trained, replies = self._trained(state, t, server)
        of_all = self.over == "all"
        models = state.models | trained if of_all else trained
        points = self._points(models, server)
        if len(state.centres) < self.clusters:
            labels = self._first_clusters(points, server.seed)
        else:
            labels = [nearest(point.model, state.centres) for point in points]
        before = state.centres.expand(self.clusters, -1)
        centres = means(points, labels, before, server.aggregation)
        centres = server.steps_to(list(before), centres, range(self.clusters))
        found = {client: label for point, label in zip(points, labels, strict=True) for client in point.clients}
        after = State(centres, found if of_all else state.cluster_of | found, models if of_all else {})
        return after, Info(self._infos(after, before, replies, server))

    def _trained(self, state: State, t: int, server: Server) -> tuple[dict[str, Tensor], list[Reply]]:
        """The participants' models after training from their centres, and their replies without vectors."""
        start_of = dict.fromkeys(server.participants(t), mean_of(state.centres))
        start_of |= {c: state.centres[state.cluster_of[c]] for c in start_of if c in state.cluster_of}
        replies: list[Reply] = []
        trained: dict[str, Tensor] = {}
        asked = server.training_requests(list(start_of), start_of, t)
        without = -1
        for reply in server.ask(asked, [state.cluster_of.get(client, without) for client in start_of]):
            trained[reply.client] = start_of[reply.client] + vector_of(reply)
            replies.append(dataclasses.replace(reply, vector=None))
        return trained, replies

    def _points(self, models: Mapping[str, Tensor], server: Server) -> list[Point]:
        """What is clustered: the given models, and that of the clients without one where all count."""
        weight = {client: server.weight(client, self.weighting) for client in server.clients}
        points = [Point([client], models[client], weight[client]) for client in server.clients if client in models]
        others = [client for client in server.clients if client not in models]
        if others and self.over == "all":
            points.append(Point(others, server.initial_model(), sum(weight[client] for client in others)))
        return points

    def _first_clusters(self, points: Sequence[Point], seed: int) -> list[int]:
        """The cluster of each point in the first round."""
        if len(points) < self.clusters:
            raise RunError(f"{len(points)} models after the first round, too few for {self.clusters} clusters")
        if self.init == "random":
            seats: list[int] = numpy_generator(seed, "fedsem").permutation(len(points)).tolist()
            return [seat % self.clusters for seat in seats]
        from sklearn.cluster import KMeans

        models = torch.stack([point.model for point in points]).numpy()
        k_means = KMeans(self.clusters, n_init=4, random_state=derive(seed, "fedsem") % 2**32)
        with one_thread():
            found = k_means.fit(models, sample_weight=np.array([point.weight for point in points]))
        return found.labels_.tolist()  # type: ignore[no-any-return]

    def assignment(self, state: State, server: Server) -> Assignment:
        return assignment_of([*state.centres, mean_of(state.centres)], _members(state, server))

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """E-step: the centre nearest to the model that a newcomer makes of the mean of the centres in a round."""
        taken = sorted(set(state.cluster_of.values()))
        start = mean_of(state.centres)
        found = {}
        for reply in server.ask(server.training_requests(clients, start, server.rounds)):
            found[reply.client] = taken[nearest(start + vector_of(reply), state.centres[taken])]
        return found

    def _infos(self, after: State, before: Tensor, replies: Iterable[Reply], server: Server) -> list[ClusterInfo]:
        sums = [WeightedSum(0) for _ in after.centres]
        for reply in replies:
            sums[after.cluster_of[reply.client]].note(reply, server.weight(reply.client, self.weighting))
        steps = torch.linalg.vector_norm((after.centres - before)[:, : server.layout.trainable], dim=1).tolist()
        members = _members(after, server)
        infos = [
            ClusterInfo(len(own), total.mean_loss(), step if total.count else None, total.max_norm or None, j)
            for j, (own, total, step) in enumerate(zip(members[:-1], sums, steps, strict=True))
        ]
        infos.append(ClusterInfo(len(members[-1]), id=len(sums)))
        return [info for info in infos if info.members]


def mean_of(centres: Tensor) -> Tensor:
    """The mean model `(d,)` of the centres `(C, d)`."""
    return centres.double().mean(0).to(centres.dtype)


def nearest(model: Tensor, centres: Tensor) -> int:
    """E-step: the centre `(C, d)` that is nearest to a model `(d,)`."""
    return int(torch.linalg.vector_norm(centres - model, dim=1).argmin())


def means(points: Sequence[Point], labels: Sequence[int], centres: Tensor, rule: Aggregation) -> Tensor:
    """M-step: each centre the weighted mean of its points, or what the rule says; a centre without any stays."""
    if rule.rule != "mean":
        after = centres.clone()
        for j in set(labels):
            own = [point for point, label in zip(points, labels, strict=True) if label == j]
            after[j] = rule.center(torch.stack([point.model for point in own]), [point.weight for point in own])
        return after
    totals = torch.zeros(centres.shape, dtype=torch.float64)
    weights = torch.zeros(len(centres), 1, dtype=torch.float64)
    for point, label in zip(points, labels, strict=True):
        totals[label].add_(point.model, alpha=point.weight)
        weights[label] += point.weight
    return torch.where(weights > 0, (totals / weights).to(centres.dtype), centres)


def _members(state: State, server: Server) -> list[list[str]]:
    """The clients of each centre, and last those that have none yet."""
    none = len(state.centres)
    return members_of(dict.fromkeys(server.clients, none) | state.cluster_of, server.clients, none + 1)
