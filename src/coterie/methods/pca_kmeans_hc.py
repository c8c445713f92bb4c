"""PCA+kM+HC: FLT's linear baseline, with principal axes in place of the encoder and no UMAP.

The paper says of it that clients apply PCA and k-means, and that the server clusters hierarchically; not where the
axes come from. `basis="own"` is its wording read literally: every client takes the axes of its own data, which needs
no exchange, but coordinates along different axes are hardly comparable, and the baseline is as weak as the paper found
it. With `basis="public"`, or a file, all clients use the same axes, fitted to data that is public: the fairer rival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat, PositiveInt

from coterie.encoders import Encoder, load_encoder
from coterie.errors import ConfigError
from coterie.methods.base import Assignment, Info, method
from coterie.methods.flt import (
    FLT,
    NoCentroids,
    check_clusters,
    check_enough,
    embed,
    form_relatives,
    grown,
    latecomers,
    rows_of,
    with_distances,
)
from coterie.methods.graph_averaging import State, averaging_round, graph_assignment
from coterie.methods.published import Departure
from coterie.methods.server import Server
from coterie.tasks.embed import LEAST


@method("pca-kmeans-hc")
class PcaKMeansHC:
    """Clients' PCA and k-means, hierarchical clustering at the server, FedAvg in each cluster (FLT's baseline)."""

    server_steps: ClassVar[bool] = True
    departures: ClassVar[tuple[Departure, ...]] = (
        Departure("least", 1, "a centroid is the mean of five samples or more: of fewer it shows them"),
    )

    basis: str = "own"
    """own: each client's principal axes; public: those of the digits in the package; or a file with a PCA encoder."""
    components: PositiveInt = 16
    """Coordinates a centroid has with basis=own."""
    k: PositiveInt = 5
    """Centroids that a client sends."""
    least: PositiveInt = LEAST
    """Samples behind a centroid at the least; smaller clients are left out."""
    gamma: PositiveFloat | Literal["auto"] = "auto"
    """Clients nearer than this are related."""
    clusters: PositiveInt | None = None
    """Number of clusters; None reads it from the dendrogram."""
    show_centroids: bool = False
    """Whether a server on a network may see the centroids, from which single samples can be told."""

    def start(self, server: Server) -> State:
        if server.engine.remote:
            self.check_network(server.engine.secure)
        check_clusters(self.clusters, server)
        ids, centroids = embed(server, server.clients, self._encoder(), self.k, 0, self.least)
        gamma: float | Literal["clearest"] = "clearest" if isinstance(self.gamma, str) else self.gamma
        options = FLT(case=2, gamma=gamma, clusters=self.clusters)
        return State(form_relatives(ids, centroids, centroids, options), server.initial_model()[None], (0,) * len(ids))

    def check_network(self, secure: bool) -> None:
        """Refuse to send centroids over a network unless that was allowed; with secure sums `embed` refuses them."""
        if not (self.show_centroids or secure):
            raise ConfigError(
                "pca-kmeans-hc would send centroids of the clients' inputs over the network, and from these single "
                "samples can be told: give pca-kmeans-hc:show_centroids=true if the server may see them"
            )

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        after, info = averaging_round(self.admit(state, server), t, server)
        return after, with_distances(info, after.relatives, "min") if t == 1 else info

    def assignment(self, state: State, server: Server) -> Assignment:
        return graph_assignment(state, server)

    def admit(self, state: State, server: Server) -> State:
        """The state with clients that came later, each in the cluster whose members are nearest on average."""
        late = latecomers(state, server)
        try:
            return self._with(state, late, server) if late else state
        except NoCentroids:
            return state  # the next round asks again

    places_unlabelled: ClassVar[bool] = True

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The cluster whose members' centroids are nearest to each newcomer's on average."""
        check_enough(clients, self.least, server)
        return rows_of(self._with(state, clients, server), clients)

    def _with(self, state: State, clients: Sequence[str], server: Server) -> State:
        """The state with more clients, as far as they answer."""
        ids, centroids = embed(server, clients, self._encoder(), self.k, 0, self.least)
        return grown(state, ids, centroids, centroids, FLT(case=2))

    def _encoder(self) -> Encoder:
        if self.basis == "own":
            return Encoder("own-pca", (), self.components, torch.empty(0))
        encoder = load_encoder("pca" if self.basis == "public" else self.basis)
        if encoder.kind != "pca":
            raise ConfigError(f"basis={self.basis!r} is a {encoder.kind} encoder: make one with --kind pca")
        return encoder
