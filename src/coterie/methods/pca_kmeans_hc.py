"""PCA+kM+HC: FLT's linear baseline, with principal axes in place of the encoder and no UMAP.

The paper says of it that clients apply PCA and k-means, and that the server clusters hierarchically; not where the
axes come from. `basis="own"` is its wording read literally: every client takes the axes of its own data, which needs
no exchange, but coordinates along different axes are hardly comparable, and the baseline is as weak as the paper found
it. With `basis="public"`, or a file, all clients use the same axes, fitted to data that is public: the fairer rival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt

from coterie.encoders import Encoder, load_encoder
from coterie.errors import ConfigError
from coterie.methods.base import Assignment, Info, method
from coterie.methods.embedding import OF_DATA, Embedded, check_enough, embed
from coterie.methods.needs import Needs
from coterie.methods.related_rounds import (
    RelatedState,
    begin,
    place_by_inputs,
    related_assignment,
    related_round,
    with_latecomers,
)
from coterie.methods.relatives import check_clusters, clusters_at, cut_into, undivided
from coterie.methods.relatives_growing import start_growing
from coterie.methods.server import Server
from coterie.tasks import Embed, HeldOut
from coterie.tasks.embed import LEAST


@method("pca-kmeans-hc")
class PcaKMeansHC:
    """Clients' PCA and k-means, hierarchical clustering at the server, FedAvg in each cluster (FLT's baseline)."""

    server_steps: ClassVar[bool] = True
    places_unlabelled: ClassVar[bool] = True

    basis: str = "own"
    """own: each client's principal axes; public: those of the digits in the package; or a file with a PCA encoder."""
    components: PositiveInt = 16
    """Coordinates a centroid has with basis=own."""
    k: PositiveInt = 5
    """Centroids that a client sends."""
    least: PositiveInt = LEAST
    """Samples behind a centroid at the least; smaller clients are left out."""
    gamma: PositiveFloat | None = None
    """Clients nearer than this are related, and Ward's method sees who is; None: it sees the distances."""
    clusters: PositiveInt | None = None
    """Number of clusters; None: held-out benefit decides or, with gamma, the dendrogram's largest jump."""
    show_centroids: bool = False
    """Whether a server on a network may see the centroids, which can reveal single samples."""

    @property
    def needs(self) -> Needs:
        """Centroids, which a server on a network sees if the options say so."""
        decides = self.gamma is None and self.clusters is None
        instead = "" if self.show_centroids else "give pca-kmeans-hc:show_centroids=true if the server may see them"
        tasks = (Embed, HeldOut) if decides else (Embed,)
        return Needs("may", tasks, of_data=OF_DATA, agreed=self.show_centroids, instead=instead)

    def start(self, server: Server) -> RelatedState:
        check_clusters(self.clusters, server)
        found = self._embed(server, server.clients)
        if self.gamma is not None:
            return begin(clusters_at(undivided(found), self.gamma, "min", self.clusters), server)
        if self.clusters is not None:
            return begin(cut_into(found, self.clusters, "min"), server)
        return start_growing(undivided(found), server)

    def round(self, state: RelatedState, t: int, server: Server) -> tuple[RelatedState, Info]:
        state = with_latecomers(state, server, lambda late: self._embed(server, late), "min")
        return related_round(state, t, server, "min")

    def assignment(self, state: RelatedState, server: Server) -> Assignment:
        return related_assignment(state, server)

    def place(self, state: RelatedState, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The cluster whose members' centroids are nearest to each newcomer's on average."""
        check_enough(clients, self.least, server)
        return place_by_inputs(state, self._embed(server, clients), "min")

    def _embed(self, server: Server, clients: Sequence[str]) -> Embedded:
        samples = sum(server.samples.values())
        if self.basis == "own" and self.components > samples:
            raise ConfigError(
                f"components={self.components} with {samples} training samples, which span no more: ask for fewer"
            )
        return embed(server, clients, Embed.with_encoder(self._encoder(), self.k, 0, 0, self.least))

    def _encoder(self) -> Encoder:
        if self.basis == "own":
            return Encoder("own-pca", (), self.components, torch.empty(0))
        encoder = load_encoder("pca" if self.basis == "public" else self.basis)
        if encoder.kind != "pca":
            raise ConfigError(f"basis={self.basis!r} is a {encoder.kind} encoder: make one with --kind pca")
        return encoder
