"""FedSEM (Xie et al. 2020, "Multi-center federated learning"): clusters of models by stochastic EM.

E-step: a client that trained belongs to the centre nearest to its model (l2). M-step: a centre becomes the mean of
its clients' models. Clients train from their own centre. How centres begin is left open by the paper, and matters:
all clients of the first round start from one model, and are then dealt to the centres at random, as in the authors'
published code, or parted by k-means of their models. Clients that were never drawn train from, and are judged by, the
mean of the centres.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from pydantic import ConfigDict, PositiveInt
from pydantic.dataclasses import dataclass
from sklearn.cluster import KMeans
from torch import Tensor

from coterie.embedding import one_thread
from coterie.errors import ConfigError, RunError
from coterie.messages import Order, Reply
from coterie.methods.base import Assignment, ClusterInfo, Info, method
from coterie.methods.server import Server, Tally
from coterie.randomness import derive, numpy_generator
from coterie.snapshot import saved
from coterie.tasks import Train


@saved
@dataclasses.dataclass(frozen=True)
class State:
    """The centres `(C, d)` (one, before the first round) and the centre of every client that was drawn so far."""

    centres: Tensor
    cluster_of: dict[str, int]


@method("fedsem")
@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FedSEM:
    """Clusters by the distance of clients' models to cluster centres, improved in every round (stochastic EM)."""

    clusters: PositiveInt = 5
    """Number of clusters C."""
    init: Literal["random", "k-means"] = "random"
    """The first round's clusters: dealt at random, as in the authors' published code, or by k-means of the models.

    From a random start groups can share a centre to the end; k-means makes the stronger baseline.
    """
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in its centre's mean."""

    def start(self, server: Server) -> State:
        drawn = len(server.participants(1))
        if self.clusters > drawn:
            raise ConfigError(
                f"clusters={self.clusters}, but {drawn} clients take part in the first round: ask for fewer clusters "
                "or more participation"
            )
        return State(server.initial_model()[None], {})

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        if len(state.centres) < self.clusters:
            return self._first_round(state, t, server)
        how = server.schedule.at(t)
        everybody = mean_of(state.centres)
        start_of = {
            c: state.centres[state.cluster_of[c]] if c in state.cluster_of else everybody
            for c in server.participants(t)
        }
        tallies = [Tally(state.centres.shape[1]) for _ in state.centres]
        cluster_of = dict(state.cluster_of)
        for reply in server.ask([Order(c, Train(m, how, server.seed_of(t, c))) for c, m in start_of.items()]):
            model = trained(start_of[reply.client], reply)
            nearest = int(torch.stack([torch.linalg.vector_norm(model - centre) for centre in state.centres]).argmin())
            cluster_of[reply.client] = nearest
            tallies[nearest].add(dataclasses.replace(reply, vector=model), server.weight(reply.client, self.weighting))
        after = State(moved_centres(state.centres, tallies), cluster_of)
        return after, Info(self._infos(after, tallies, state.centres, server))

    def _first_round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        replies = list(server.train(server.participants(t), state.centres[0], t))
        if len(replies) < self.clusters:
            raise RunError(f"{len(replies)} clients answered the first round, too few for {self.clusters} clusters")
        models = torch.stack([trained(state.centres[0], reply) for reply in replies])
        labels = self._first_clusters(models, server.seed)
        tallies = [Tally(models.shape[1]) for _ in range(self.clusters)]
        for label, model, reply in zip(labels, models, replies, strict=True):
            weight = server.weight(reply.client, self.weighting)
            tallies[label].add(dataclasses.replace(reply, vector=model), weight)
        begun = state.centres.expand(self.clusters, -1)
        after = State(
            moved_centres(begun, tallies),
            {reply.client: int(label) for label, reply in zip(labels, replies, strict=True)},
        )
        return after, Info(self._infos(after, tallies, begun, server))

    def _first_clusters(self, models: Tensor, seed: int) -> list[int]:
        """The cluster of each of the first round's models `(n, d)`."""
        if self.init == "random":
            seats: list[int] = numpy_generator(seed, "fedsem").permutation(len(models)).tolist()
            return [seat % self.clusters for seat in seats]
        with one_thread():
            found = KMeans(self.clusters, n_init=4, random_state=derive(seed, "fedsem") % 2**32).fit(models.numpy())
        return found.labels_.tolist()  # type: ignore[no-any-return]

    def assignment(self, state: State, server: Server) -> Assignment:
        members = members_of(state, server)
        models = [*state.centres, mean_of(state.centres)]
        pairs = [(model, clients) for model, clients in zip(models, members, strict=True) if clients]
        return Assignment([model for model, _ in pairs], [clients for _, clients in pairs])

    def _infos(self, after: State, tallies: list[Tally], before: Tensor, server: Server) -> list[ClusterInfo]:
        steps = torch.linalg.vector_norm((after.centres - before)[:, : server.engine.layout.trainable], dim=1).tolist()
        members = members_of(after, server)
        infos = [
            ClusterInfo(len(own), tally.mean_loss(), step if tally.count else None, tally.max_norm or None)
            for own, tally, step in zip(members[:-1], tallies, steps, strict=True)
        ]
        infos.append(ClusterInfo(len(members[-1])))
        return [info for info in infos if info.members]


def mean_of(centres: Tensor) -> Tensor:
    """The mean model `(d,)` of the centres `(C, d)`."""
    return centres.double().mean(0).to(centres.dtype)


def trained(start: Tensor, reply: Reply) -> Tensor:
    """A client's own model `(d,)` after training."""
    assert reply.vector is not None
    return start + reply.vector


def moved_centres(centres: Tensor, tallies: list[Tally]) -> Tensor:
    """M-step: each centre the mean of its clients' models; a centre that nobody was near stays."""
    rows = [
        tally.mean().to(centres.dtype) if tally.count else centre
        for centre, tally in zip(centres, tallies, strict=True)
    ]
    return torch.stack(rows)


def members_of(state: State, server: Server) -> list[list[str]]:
    """The clients of each centre, and last those that were never drawn."""
    members: list[list[str]] = [[] for _ in range(len(state.centres) + 1)]
    for client in server.clients:
        members[state.cluster_of.get(client, len(state.centres))].append(client)
    return members
