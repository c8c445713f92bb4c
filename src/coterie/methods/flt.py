"""FLT (Jamali-Rad, Abdizadeh, Szabó 2021): relatedness from inputs, in one shot (Algorithm 2), then averaging (3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from coterie.clustering.manifold import import_umap
from coterie.encoders import load_encoder
from coterie.errors import ConfigError
from coterie.methods.base import Assignment, Info, method
from coterie.methods.embedding import Embedded, check_enough, codebook_of, embed, embedding_task, parse_signature
from coterie.methods.needs import Needs
from coterie.methods.related_rounds import (
    RelatedState,
    begin,
    place_by_inputs,
    related_assignment,
    related_round,
    with_latecomers,
)
from coterie.methods.relatives import Relatives, check_clusters, clusters_at, cut_into, graph_at, projected, undivided
from coterie.methods.relatives_growing import start_growing
from coterie.methods.server import Server
from coterie.tasks import Embed, HeldOut

AUTHORS_GAMMA = 1.0
"""γ of the authors' code; 1 is also UMAP's own scale."""


@method("flt")
class FLT:
    """Relatedness of clients found in one shot from their inputs; relatives or clusters average their models."""

    server_steps: ClassVar[bool] = True
    places_unlabelled: ClassVar[bool] = True

    case: Literal[1, 2] = 2
    """1: each client averages its relatives (any graph). 2: disjoint clusters, FedAvg in each."""
    encoder: str = "default"
    """A file made by `coterie encoder train`, or one that comes with the package: default, pca."""
    finetune: NonNegativeInt = 0
    """F: epochs for which each client first fine-tunes the encoder on its own inputs."""
    k: PositiveInt = 5
    """Centroids that a client sends; one with few samples sends fewer."""
    signature: str = "auto"
    """What a client sends: centroids of its codes, with options as centroids(least=1,noise=0.5), or words of a codebook
    that all clients make together. auto: words with secure sums, centroids in a simulation; on a network you choose."""
    gamma: PositiveFloat | None = None
    """γ: clients nearer than this in UMAP's plane are related. None: in case I the authors' 1; in case II no threshold,
    but Ward's dendrogram of the clients' distances, cut into `clusters` or where held-out data gains."""
    distance: Literal["min", "matching"] = "min"
    """Of two clients: the nearest pair of centroids, or the mean of the best one-to-one match (the authors' code)."""
    clusters: PositiveInt | None = None
    """Case II: the number of clusters; None: held-out benefit decides or, with γ, the dendrogram's largest jump."""

    def __post_init__(self) -> None:
        parse_signature(self.signature)

    @property
    def needs(self) -> Needs:
        """Centroids or words, and where benefit decides the losses of models on held-out data."""
        decides = self.gamma is None and self.clusters is None and self.case == 2
        return parse_signature(self.signature).needs((Embed, HeldOut) if decides else (Embed,))

    def start(self, server: Server) -> RelatedState:
        if self.case == 1 and self.clusters is not None:
            raise ConfigError("clusters goes with case=2: case=1 averages over relatives, without clusters")
        if self.case == 1 and server.optimizer.rule != "none":
            raise ConfigError(f"server_optimizer={server.optimizer.rule!r} goes with case=2: case=1 has no clusters")
        check_clusters(self.clusters, server)
        if self.gamma is not None or self.case == 1:
            import_umap()
        found = self._embed(server, server.clients)  # Algorithm 2, lines 1-11
        if self.gamma is None and self.case == 2:
            if self.clusters is None:
                return start_growing(undivided(found), server)
            return begin(cut_into(found, self.clusters, self.distance), server)
        return begin(self.relate(projected(found)), server)  # lines 12-19

    def relate(self, laid_out: Relatives) -> Relatives:
        """Who averages with whom, by γ (Algorithm 2, lines 15-19)."""
        gamma = AUTHORS_GAMMA if self.gamma is None else self.gamma
        if self.case == 1:
            return graph_at(laid_out, gamma, self.distance)  # lines 15-17
        return clusters_at(laid_out, gamma, self.distance, self.clusters)  # lines 15-19

    def _embed(self, server: Server, clients: Sequence[str], known: Relatives | None = None) -> Embedded:
        codebook = None if known is None else codebook_of(known.centroids)
        how = parse_signature(self.signature)
        task = embedding_task(server, load_encoder(self.encoder), self.k, self.finetune, how, codebook)
        return embed(server, clients, task)

    def round(self, state: RelatedState, t: int, server: Server) -> tuple[RelatedState, Info]:
        return related_round(self.admit(state, server), t, server, self.distance)  # Algorithm 3, lines 3-21

    def admit(self, state: RelatedState, server: Server) -> RelatedState:
        """The state with clients that came later."""
        return with_latecomers(state, server, lambda late: self._embed(server, late, state.relatives), self.distance)

    def assignment(self, state: RelatedState, server: Server) -> Assignment:
        return related_assignment(state, server)

    def place(self, state: RelatedState, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The model of each newcomer by its centroids, without labels."""
        check_enough(clients, parse_signature(self.signature).least, server)
        return place_by_inputs(state, self._embed(server, clients, state.relatives), self.distance)
