"""FLT (Jamali-Rad, Abdizadeh, Szabó 2021): who is related to whom, found in one shot before any training.

Stage (FCR, Algorithm 2): clients embed their inputs and send k centroids; the server lays all centroids out in the
plane with UMAP, measures how near clients come, and calls those below γ related. Rounds (Algorithm 3): each client's
model is the mean of its relatives' models (case I), or clusters are cut from the relatedness and average by themselves
(case II). Against the paper: Sign(A − γ) would mark the far pairs, here related means nearer than γ; and the mixing
weights are n_j over the relatives that took part, so that they sum to one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from coterie.clustering import matching_distances, min_pair_distances, related, ward_clusters
from coterie.clustering.clearest import clearest_gamma
from coterie.clustering.manifold import SPREAD, import_umap, place, project
from coterie.encoders import Encoder, load_encoder
from coterie.errors import ConfigError, RunError
from coterie.methods.base import Assignment, Info, Matrix, method
from coterie.methods.graph_averaging import Relatives, State, averaging_round, graph_assignment
from coterie.methods.server import Server
from coterie.privacy.masks import MASKED
from coterie.tasks import Embed, Request
from coterie.tasks.embed import LEAST, centroid_table

DISTANCES = {"min": min_pair_distances, "matching": matching_distances}


MOST_FOR_DISTANCES = 1000
"""Up to so many clients the distances are kept for the report; beyond, related or not."""


class NoCentroids(RunError):
    """Nobody who was asked to embed its data did so."""


@method("flt")
class FLT:
    """Relatedness of clients found in one shot from their inputs; relatives or clusters average their models."""

    server_steps: ClassVar[bool] = True

    case: Literal[1, 2] = 2
    """1: each client averages its relatives (any graph). 2: disjoint clusters, FedAvg in each."""
    encoder: str = "default"
    """A file made by `coterie encoder train`, or one that comes with the package: default, pca."""
    k: PositiveInt = 5
    """Centroids that a client sends; one with fewer than k · least samples sends fewer."""
    least: PositiveInt = LEAST
    """Samples behind a centroid at the least: the mean of few samples shows them. Smaller clients are left out."""
    finetune: NonNegativeInt = 0
    """F: epochs for which each client first fine-tunes the encoder on its own inputs."""
    gamma: PositiveFloat | Literal["auto"] = "auto"
    """Clients nearer than this are related; auto takes the value up to 1, UMAP's own scale and the paper's γ, under
    which clients fall into clusters most clearly (see `clearest_gamma`)."""
    distance: Literal["min", "matching"] = "min"
    """Of two clients: the nearest pair of centroids, or the mean of the best one-to-one match."""
    clusters: PositiveInt | None = None
    """Case II: the number of clusters; None reads it from the dendrogram."""
    umap_seed: NonNegativeInt = 0
    """UMAP's own seed, apart from the run's: the same centroids always give the same picture."""

    def start(self, server: Server) -> State:
        if self.clusters is not None and self.case == 1:
            raise ConfigError("clusters goes with case=2: case=1 averages over the relatives, without clusters")
        if self.case == 1 and server.optimizer.rule != "none":
            raise ConfigError(f"server_optimizer={server.optimizer.rule!r} goes with case=2: case=1 has no clusters")
        check_clusters(self.clusters, server)
        import_umap()
        ids, centroids = embed(server, server.clients, load_encoder(self.encoder), self.k, self.finetune, self.least)
        positions = project(centroids, self.umap_seed)
        relatives = form_relatives(ids, centroids, positions, self, longest=SPREAD)
        return State(relatives, server.initial_model()[None], (0,) * len(ids))

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        after, info = averaging_round(self.admit(state, server), t, server)
        return after, with_distances(info, after.relatives, self.distance) if t == 1 else info

    def assignment(self, state: State, server: Server) -> Assignment:
        return graph_assignment(state, server)

    def admit(self, state: State, server: Server) -> State:
        """The state with clients that came later: placed by UMAP's transform, without moving the others.

        In case I a newcomer is related to those nearer than the γ found at the start, and begins with its nearest
        client's model. In case II it joins the cluster whose members are nearest on average.
        """
        late = latecomers(state, server)
        if not late:
            return state
        try:
            return self._with(state, late, server)
        except NoCentroids:
            return state  # the next round asks again

    places_unlabelled: ClassVar[bool] = True

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The model of each newcomer by its centroids: that of the nearest cluster, or of the nearest client."""
        check_enough(clients, self.least, server)
        return rows_of(self._with(state, clients, server), clients)

    def _with(self, state: State, clients: Sequence[str], server: Server) -> State:
        """The state with more clients, as far as they answer."""
        ids, centroids = embed(server, clients, load_encoder(self.encoder), self.k, self.finetune, self.least)
        known = state.relatives
        positions = place(centroids, known.centroids, known.positions, self.umap_seed)
        return grown(state, ids, centroids, positions, self)


def with_distances(info: Info, relatives: Relatives, distance: str) -> Info:
    """The round's report with the distances between clients or, for many of them, with who is related."""
    if len(relatives.ids) > MOST_FOR_DISTANCES:
        values, meaning = relatives.related.astype(np.float32), "related (1) or not (0)"
    else:
        values = np.asarray(DISTANCES[distance](relatives.positions), dtype=np.float32)
        meaning = "distance between the clients' data as embedded"
    similar = len(relatives.ids) > MOST_FOR_DISTANCES
    return dataclasses.replace(info, matrices=[Matrix("relatedness", relatives.ids, values, meaning, similar)])


def latecomers(state: State, server: Server) -> list[str]:
    """The clients that have no place among the relatives yet."""
    known = set(state.relatives.ids)
    return [client for client in server.clients if client not in known]


def grown(
    state: State,
    ids: tuple[str, ...],
    centroids: npt.NDArray[np.float32],
    positions: npt.NDArray[np.float32],
    options: FLT,
) -> State:
    """The state with clients `ids`, whose centroids `(N, k, e)` lie at `positions`; see `FLT.admit`."""
    known = state.relatives
    everywhere = np.concatenate([known.positions, positions])
    distances = DISTANCES[options.distance](everywhere)
    before = len(known.ids)
    nearest = distances[before:, :before].argmin(axis=1)
    if options.case == 2:
        # One centroid that UMAP put astray makes a wrong client the nearest, but hardly a wrong cluster.
        nearest = (distances[before:, :before] @ known.related / known.related.sum(axis=0)).argmin(axis=1)
    near = related(distances, known.gamma)
    near[:before, :before] = known.related
    if options.case == 2:
        home = np.concatenate([np.arange(before), nearest])
        near = known.related[np.ix_(home, home)]
    relatives = dataclasses.replace(
        known,
        ids=known.ids + ids,
        centroids=np.concatenate([known.centroids, centroids]),
        positions=everywhere,
        related=near,
    )
    return State(relatives, state.models, state.row + tuple(state.row[i] for i in nearest))


def rows_of(state: State, clients: Sequence[str]) -> dict[str, int]:
    """The model of each of the clients that have a place; a name that came twice counts as the later one."""
    rows = dict(zip(state.relatives.ids, state.row, strict=True))
    return {client: rows[client] for client in clients if client in rows}


def check_enough(clients: Sequence[str], least: int, server: Server) -> None:
    """Refuse newcomers that are too small to send a centroid."""
    for client in clients:
        if server.samples[client] < least:
            raise ConfigError(
                f"client {client!r} has {server.samples[client]} samples, a centroid is the mean of at least {least}: "
                "give more data"
            )


def embed(
    server: Server, clients: Sequence[str], encoder: Encoder, k: int, epochs: int, least: int
) -> tuple[tuple[str, ...], npt.NDArray[np.float32]]:
    """Ask clients for their centroids: the ids of those that answered, and a table `(M, k, e)` (Algorithm 2).

    A client with fewer than `least` samples is not asked.
    """
    if MASKED in server.layout.names:
        raise ConfigError(
            "privacy turns models, not what clients tell of their inputs: the centroids would go out in clear; use "
            "cfl, ifca or fedavg with privacy, or privacy='none'"
        )
    task = Embed.with_encoder(encoder, k, epochs, 0, least)
    requests = [
        Request(c, dataclasses.replace(task, seed=server.seed_of(0, c, "embed")))
        for c in clients
        if server.samples[c] >= least
    ]
    replies = list(server.ask(requests))
    if not replies:
        raise NoCentroids(f"no client with {least} samples or more answered the embedding: see the faults of the run")
    return tuple(reply.client for reply in replies), centroid_table(replies, k, encoder.code)


def form_relatives(
    ids: tuple[str, ...],
    centroids: npt.NDArray[np.float32],
    positions: npt.NDArray[np.float32],
    options: FLT,
    longest: float = float("inf"),
) -> Relatives:
    """Distances, threshold and, in case II, clusters (Algorithm 2, lines 15-18)."""
    distances = DISTANCES[options.distance](positions)
    gamma = clearest_gamma(distances, longest) if options.gamma == "auto" else float(options.gamma)
    near = related(distances, gamma)
    share = (np.count_nonzero(near) - len(ids)) / max(1, len(ids) * (len(ids) - 1))
    text = f"γ = {gamma:.3g}: {100 * share:.0f} % of the pairs are related"
    if options.case == 2:
        labels = ward_clusters(near, options.clusters)
        near = labels[:, None] == labels[None, :]
        text += f", {labels.max() + 1} clusters of sizes {', '.join(map(str, np.bincount(labels)))}"
    return Relatives(ids, centroids, positions, gamma, near, text)


def check_clusters(clusters: int | None, server: Server) -> None:
    """Refuse more clusters than there are clients."""
    if clusters is not None and clusters > len(server.clients):
        raise ConfigError(f"clusters={clusters} with {len(server.clients)} clients: ask for at most one per client")
