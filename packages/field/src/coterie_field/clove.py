"""CLoVE (Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty 2026): clusters by the clients' vectors of k losses.

In a round every participant reports the losses of all models on its training data. The server clusters these vectors
by k-means, matches clusters and models one to one so that the sum of losses is lowest (Hungarian algorithm), and each
cluster improves its model. Unlike IFCA, clients that all like one model best can still differ
in their losses under the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods import Assignment, Event, Info, Needs, Server, WeightedSum, cluster_info, members_of, method, saved
from coterie.methods.averaging import assignment_of
from coterie.methods.choices import moved_events, moves
from coterie.methods.placing import lowest_loss
from coterie.methods.published import Paper
from coterie.randomness import derive
from coterie.tasks import Evaluate
from coterie.trainers import one_thread
from coterie_field.agglomerative import agglomerate, vector_distances
from coterie_field.papers import PAPERS

RESTARTS = 10
"""Starts of k-means, each seeded by k-means++; the best counts."""
BETTER = 1.1
"""A larger number of clusters is taken if its silhouette is this many times that of a smaller one: the authors' own."""


@saved
class State:
    """The models `(k, d)`, who was last served by which, and for how many rounds no client has moved."""

    models: Tensor
    cluster_of: dict[str, int]
    steady: int


@method("clove")
class CLoVE:
    """k models; clients report their losses under all, k-means on these vectors makes the clusters of each round.

    The models start from independent draws. Every participant is sent all of them for its losses, and then the one that
    it trains. A client that comes later joins the model with its lowest loss.
    """

    paper: ClassVar[Paper] = PAPERS["clove"]
    server_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs(unnoised="clients are clustered by their exact losses")

    k: Annotated[int, Field(ge=1)] | Literal["auto"] = 2
    """Number of clusters, or "auto": from 2 to `k_max` in each round, by the silhouette of the loss vectors."""
    k_max: Annotated[int, Field(ge=2, le=100)] = 8
    """For k="auto": how many models there are."""
    stable_after: PositiveInt | None = None
    """Rounds without a move after which the clusters stay as they are and a client is sent its own model only (the
    authors' code takes 3, which can be too early where models learn slowly); none: never."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in its cluster's mean: its number of samples, or one."""

    def start(self, server: Server) -> State:
        if self.k != "auto" and self.k > len(server.clients):
            raise ConfigError(f"k={self.k} with {len(server.clients)} clients: ask for at most one cluster per client")
        models = self.k_max if self.k == "auto" else self.k
        return State(torch.stack([server.initial_model(i) for i in range(models)]), {}, 0)

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        participants = server.participants(t)
        if self.stable_after is not None and state.steady >= self.stable_after:
            now, steady, stable = self._kept(state, participants, server), state.steady, []
        else:
            now = self._chosen(state, participants, t, server)
            steady = self._steady(state, now)
            stable = self._stable_events(steady)
        models, sums = self._averaged(state.models, now, t, server)
        present = set(server.clients)
        cluster_of = {client: j for client, j in (state.cluster_of | now).items() if client in present}
        members = members_of(cluster_of, server.clients, len(models))
        infos = [cluster_info(len(own), sums[j], server, j) for j, own in enumerate(members) if own]
        moved = moved_events(moves(state.cluster_of, now), len(now))
        return State(models, cluster_of, steady), Info(infos, moved + stable)

    def _stable_events(self, steady: int) -> list[Event]:
        """The round after which the clusters stay as they are."""
        if steady != self.stable_after:
            return []
        text = f"no client moved for {steady} rounds: the clusters stay, each client is sent its own model only"
        return [Event("stable", text, {"rounds": steady})]

    def _averaged(
        self, models: Tensor, now: Mapping[str, int], t: int, server: Server
    ) -> tuple[Tensor, list[WeightedSum]]:
        """The models `(k, d)` after the training of the clients that have them, and the sums of their updates."""
        rows = [row.clone() for row in models]
        requests = server.training_requests(list(now), {client: rows[j] for client, j in now.items()}, t)
        sums, _ = server.exchange(requests, list(now.values()), clusters=len(rows), weighting=self.weighting)
        moved = [server.step(row, total.mean(), j) for j, (row, total) in enumerate(zip(rows, sums, strict=True))]
        return torch.stack(moved), sums

    def _steady(self, state: State, now: dict[str, int]) -> int:
        """Rounds in a row in which no client moved or came; a round in which none answered does not count."""
        if not now:
            return state.steady
        settled = not moves(state.cluster_of, now) and all(client in state.cluster_of for client in now)
        return state.steady + 1 if settled else 0

    def _kept(self, state: State, participants: Sequence[str], server: Server) -> dict[str, int]:
        """The participants where they were last; those that were nowhere yet with their lowest loss."""
        known = {client: state.cluster_of[client] for client in participants if client in state.cluster_of}
        new = [client for client in participants if client not in known]
        return known | (lowest_loss(self._in_use(state), new, server) if new else {})

    def _chosen(self, state: State, participants: Sequence[str], t: int, server: Server) -> dict[str, int]:
        """The participants by k-means on their losses, each cluster with the model that the matching gives it."""
        replies = list(server.ask_all(participants, Evaluate(state.models, "train")))
        if not replies:
            return {}
        losses = finite(np.array([reply.values["loss"] for reply in replies]))
        k = best_k(losses, self.k_max) if self.k == "auto" else min(self.k, len(losses))
        labels = k_means(losses, k, derive(server.seed, "clove", t))
        model_of = matched(losses, labels)
        return {reply.client: model_of[label] for reply, label in zip(replies, labels.tolist(), strict=True)}

    def _in_use(self, state: State) -> dict[int, Tensor]:
        """The models that some client has, by id; all, before any client has one."""
        used = sorted(set(state.cluster_of.values())) or list(range(len(state.models)))
        return {j: state.models[j] for j in used}

    def assignment(self, state: State, server: Server) -> Assignment:
        """Every client with the model of its last round; those that had none yet are asked for their losses."""
        cluster_of = {client: state.cluster_of[client] for client in server.clients if client in state.cluster_of}
        new = [client for client in server.clients if client not in cluster_of]
        models = self._in_use(state)
        cluster_of |= dict.fromkeys(new, next(iter(models))) | (lowest_loss(models, new, server) if new else {})
        return assignment_of(state.models, members_of(cluster_of, server.clients, len(state.models)))

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The model with the lowest loss on each newcomer's data, among those that some client has."""
        return lowest_loss(self._in_use(state), clients, server)


def finite(losses: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The losses `(M, k)` with what is not finite above the largest that is, so that distances stay numbers."""
    known = losses[np.isfinite(losses)]
    above = float(known.max()) + 1.0 if len(known) else 1.0
    return np.nan_to_num(losses, nan=above, posinf=above, neginf=-above)


def k_means(losses: npt.NDArray[np.float64], k: int, seed: int) -> npt.NDArray[np.int64]:
    """Labels `(M,)` of at most k clusters of loss vectors `(M, models)`, numbered by their first member."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different vectors than clusters: fewer clusters
        found = KMeans(k, n_init=RESTARTS, random_state=seed % 2**32).fit_predict(losses)
    _, first, labels = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[labels].astype(np.int64)


def matched(losses: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> list[int]:
    """The model of each cluster: one each, with the lowest sum of the members' losses `(M, models)` over all."""
    from scipy.optimize import linear_sum_assignment

    costs = np.stack([losses[labels == label].sum(axis=0) for label in range(int(labels.max()) + 1)])
    found: list[int] = linear_sum_assignment(costs)[1].tolist()
    return found


def best_k(losses: npt.NDArray[np.float64], most: int) -> int:
    """The number of clusters of loss vectors `(M, models)` from 2 to `most` whose silhouette is highest.

    As the authors do: clusters by Ward's linkage, and a larger number must have a silhouette higher by a tenth. One
    cluster has no silhouette, so it is never the answer where there are three clients or more.
    """
    from sklearn.metrics import silhouette_score

    best, highest = 1, -1.0
    distances = vector_distances(losses, "l2")
    for k in range(2, min(most, len(losses) - 1) + 1):
        labels = agglomerate(distances, "ward", clusters=k)
        score = float(silhouette_score(distances, labels, metric="precomputed"))
        if score > BETTER * highest:
            best, highest = k, score
    return best
