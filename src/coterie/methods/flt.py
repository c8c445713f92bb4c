"""FLT (Jamali-Rad, Abdizadeh, Szabó 2021): who is related to whom, found in one shot before any training.

Stage (FCR, Algorithm 2): clients embed their inputs and send k centroids; the server lays all centroids out in the
plane with UMAP, measures how near clients come, and calls those below γ related. Rounds (Algorithm 3): each client's
model is the mean of its relatives' models (case I), or disjoint clusters average by themselves (case II). With γ given
clusters are cut from the relatedness as in the paper; by default they are read from the patches of the plane that
clients share, and the clients are one family unless the evidence says several (`find_families`). Against the paper:
Sign(A − γ) would mark the far pairs, here related means nearer than γ; and the mixing weights are n_j over the
relatives that took part, so that they sum to one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.clustering import matching_distances, min_pair_distances, related, ward_clusters
from coterie.clustering.clearest import clearest_gamma
from coterie.clustering.dendrogram import cut
from coterie.clustering.families import clearest_layout, count_words, find_families, unlike, word_merges
from coterie.clustering.manifold import COMPONENTS, NEIGHBOURS, SPREAD, import_umap, place, project
from coterie.clustering.relatedness import out_of_range, real_centroids
from coterie.encoders import Encoder, load_encoder
from coterie.errors import ConfigError, RunError
from coterie.methods.base import Assignment, Info, Matrix, method
from coterie.methods.flt_words import form_words
from coterie.methods.graph_averaging import Relatives, State, averaging_round, graph_assignment
from coterie.methods.needs import Needs
from coterie.methods.published import Departure
from coterie.methods.server import Server
from coterie.tasks import Embed, Request
from coterie.tasks.embed import LEAST, centroid_table

OF_DATA = "centroids of the clients' data"
DISTANCES = {"min": min_pair_distances, "matching": matching_distances}


LAYOUTS, MOST_LAID_OUT = 8, 4000
"""How often UMAP lays the centroids out for the evidence, and how many centroids altogether. A single layout may draw
two patches into each other; which one does depends on the processor, whose last bits grow in UMAP's steps."""
MOST_FOR_DISTANCES = 1000
"""Up to so many clients the distances are kept for the report; beyond, related or not."""


FAR = 10 * SPREAD
"""How far from all others those are placed whose centroids are out of range."""


class NoCentroids(RunError):
    """Nobody who was asked to embed its data did so."""


@method("flt")
class FLT:
    """Relatedness of clients found in one shot from their inputs; relatives or clusters average their models."""

    server_steps: ClassVar[bool] = True

    departures: ClassVar[tuple[Departure, ...]] = (
        Departure("gamma", 1.0, "families are found by the evidence, with no γ; 1 is that of the authors' code"),
        Departure("ward", "plain", "rows of relatives have unit length, so that large families weigh no more"),
        Departure("least", 1, "a centroid is the mean of five samples or more: of fewer it shows them"),
        Departure("signature", "centroids", "with secure sums clients send words of a codebook in place of centroids"),
    )

    case: Literal[1, 2, "auto"] = 2
    """1: each client averages its relatives (any graph). 2: disjoint clusters, FedAvg in each. auto: clusters where the
    evidence says several families; else the graph if clients differ more than chance explains; else all together."""
    encoder: str = "default"
    """A file made by `coterie encoder train`, or one that comes with the package: default, pca."""
    k: PositiveInt = 5
    """Centroids that a client sends; one with fewer than k · least samples sends fewer."""
    least: PositiveInt = LEAST
    """Samples behind a centroid at the least: the mean of few samples shows them. Smaller clients are left out."""
    signature: Literal["auto", "centroids", "words"] = "auto"
    """What a client sends of its inputs: centroids of its codes, which lean towards its own samples; or, for each, the
    nearest word of a codebook that all clients make together (see `flt_words`), by sums that can be secure. auto: words
    with secure sums; without them centroids in a simulation, and on a network nothing: it asks you to choose."""
    noise: NonNegativeFloat = 0.0
    """Gaussian noise on a centroid, in standard deviations of the client's codes around its centroids."""
    finetune: NonNegativeInt = 0
    """F: epochs for which each client first fine-tunes the encoder on its own inputs."""
    gamma: PositiveFloat | Literal["auto", "clearest"] = "auto"
    """Clients nearer than this are related (the paper's γ; 1 is UMAP's own scale). clearest: the value up to 1 under
    which Ward's dendrogram has its largest jump. auto: in case II no γ, but the families that clients' shared patches
    of the plane give evidence for (see `find_families`); in case I as clearest."""
    distance: Literal["min", "matching"] = "min"
    """Of two clients: the nearest pair of centroids, or the mean of the best one-to-one match (the authors' code)."""
    clusters: PositiveInt | None = None
    """Case II: the number of clusters; None decides by the evidence or, with γ, by the dendrogram's largest jump."""
    ward: Literal["unit", "plain"] = "unit"
    """What Ward's method sees with γ: each client's row of relatives, scaled to length one or as it is."""
    neighbours: Annotated[int, Field(ge=2)] = NEIGHBOURS
    """Neighbours that UMAP looks at."""
    components: PositiveInt = COMPONENTS
    """u: dimensions that UMAP lays the centroids out in."""
    umap_seed: NonNegativeInt = 0
    """UMAP's own seed, apart from the run's: the same centroids always give the same picture."""

    def start(self, server: Server) -> State:
        if self.clusters is not None and self.case != 2:
            raise ConfigError(
                f"clusters goes with case=2: case={self.case} may average over relatives without clusters"
            )
        if self.case != 2 and server.optimizer.rule != "none":
            raise ConfigError(
                f"server_optimizer={server.optimizer.rule!r} goes with case=2: case={self.case} may have no clusters"
            )
        if self.case == "auto" and self.gamma != "auto":
            raise ConfigError(f"gamma={self.gamma} goes with case=1 or case=2: case=auto decides by the evidence alone")
        if self._in_words(server) and self.finetune:
            raise ConfigError("signature='words' goes with finetune=0: words are of one encoder that all clients share")
        check_clusters(self.clusters, server)
        import_umap()
        encoder, words = load_encoder(self.encoder), None
        if self._in_words(server):
            words = torch.from_numpy(form_words(server, server.clients, encoder))
        ids, centroids = self._embed(server, server.clients, encoder, words)
        options = self if words is None else dataclasses.replace(self, signature="words")
        relatives = within_range(ids, centroids, options)
        return State(relatives, server.initial_model()[None], (0,) * len(ids))

    @property
    def needs(self) -> Needs:
        """Centroids, or with secure sums the words nearest to them, of which the clients' sums tell none apart."""
        agreed = self.signature == "centroids"
        instead = (
            "give flt:signature=words with them"
            if agreed
            else "give secure_sums=true, with which clients send words that tell none, or flt:signature=centroids if "
            "the server may see them"
        )
        return Needs("may", (Embed,), of_data=OF_DATA, in_sums=not agreed, agreed=agreed, instead=instead)

    def _in_words(self, server: Server) -> bool:
        return self.signature == "words" or (self.signature == "auto" and server.engine.secure)

    def _embed(
        self, server: Server, clients: Sequence[str], encoder: Encoder, words: Tensor | None
    ) -> tuple[tuple[str, ...], npt.NDArray[np.float32]]:
        return embed(server, clients, encoder, self.k, self.finetune, self.least, words, self.noise)

    def reconsidered(self, state: State) -> State:
        """A state of `start` with relatives formed anew by these options, from the positions that are known already."""
        known = state.relatives
        relatives = form_relatives(known.ids, known.centroids, known.positions, self, longest=SPREAD)
        return dataclasses.replace(state, relatives=relatives)

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        after, info = averaging_round(self.admit(state, server), t, server)
        return after, with_distances(info, after.relatives, self.distance) if t == 1 else info

    def assignment(self, state: State, server: Server) -> Assignment:
        return graph_assignment(state, server)

    def admit(self, state: State, server: Server) -> State:
        """The state with clients that came later: placed by UMAP's transform, without moving the others.

        In a graph a newcomer is related to those nearer than its γ, and begins with its nearest client's model. Among
        clusters it joins the one whose members are nearest on average.
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
        known, words = state.relatives, None
        if self._in_words(server):
            used = known.centroids.reshape(-1, known.centroids.shape[-1])
            words = torch.from_numpy(np.unique(used[~np.isnan(used).any(axis=1)], axis=0))
        ids, centroids = self._embed(server, clients, load_encoder(self.encoder), words)
        positions = place(centroids, known.centroids, known.positions, self.umap_seed, self.neighbours)
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
    if known.gamma is None:
        # One centroid that UMAP put astray makes a wrong client the nearest, but hardly a wrong cluster.
        nearest = (distances[before:, :before] @ known.related / known.related.sum(axis=0)).argmin(axis=1)
    if known.gamma is None:
        home = np.concatenate([np.arange(before), nearest])
        near = known.related[np.ix_(home, home)]
    else:
        near = related(distances, known.gamma)
        near[:before, :before] = known.related
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
    server: Server,
    clients: Sequence[str],
    encoder: Encoder,
    k: int,
    epochs: int,
    least: int,
    words: Tensor | None = None,
    noise: float = 0.0,
) -> tuple[tuple[str, ...], npt.NDArray[np.float32]]:
    """Ask clients for their centroids: the ids of those that answered, and a table `(M, k, e)` (Algorithm 2).

    A client with fewer than `least` samples is not asked. With `words` each centroid is one of them.
    """
    task = Embed.with_encoder(encoder, k, epochs, 0, least, words, noise)
    requests = [
        Request(c, dataclasses.replace(task, seed=server.seed_of(0, c, "embed")))
        for c in clients
        if server.samples[c] >= least
    ]
    replies = list(server.ask(requests))
    if not replies:
        raise NoCentroids(f"no client with {least} samples or more answered the embedding: see the faults of the run")
    return tuple(reply.client for reply in replies), centroid_table(replies, k, encoder.code)


def within_range(ids: tuple[str, ...], centroids: npt.NDArray[np.float32], options: FLT) -> Relatives:
    """The relatives of all clients; those whose centroids lie far outside the others' range are laid out by themselves.

    Such clients are hostile, or their inputs have nothing in common with the others'. On one map with them everybody
    else would be drawn together. Where a number of clusters is asked for, all are on one map.
    """
    far = out_of_range(centroids)
    if options.clusters is not None or not far.any():
        return _laid_out(ids, centroids, options)
    rest, apart = (
        _laid_out(tuple(client for client, own in zip(ids, which, strict=True) if own), centroids[which], options)
        for which in (~far, far)
    )
    positions = np.full((len(ids), *rest.positions.shape[1:]), np.nan, dtype=np.float32)
    positions[~far] = rest.positions
    # As far from the others as these are wide, on either side.
    positions[far] = apart.positions + 2 * np.nanmax(np.abs(rest.positions)) + np.nanmax(np.abs(apart.positions)) + FAR
    near = np.zeros((len(ids), len(ids)), dtype=bool)
    near[np.ix_(~far, ~far)], near[np.ix_(far, far)] = rest.related, apart.related
    text = f"{rest.text}; far outside the others' range and apart from them: {', '.join(apart.ids)}"
    return Relatives(ids, centroids, positions, rest.gamma, near, text)


def _laid_out(ids: tuple[str, ...], centroids: npt.NDArray[np.float32], options: FLT) -> Relatives:
    """The relatives of clients that UMAP lays out together."""
    positions = project(centroids, options.umap_seed, options.neighbours, options.components)
    if len(ids) == 1:
        return Relatives(ids, centroids, positions, None, np.ones((1, 1), dtype=bool), "one client")
    return form_relatives(ids, centroids, positions, options, longest=SPREAD)


def form_relatives(
    ids: tuple[str, ...],
    centroids: npt.NDArray[np.float32],
    positions: npt.NDArray[np.float32],
    options: FLT,
    longest: float = float("inf"),
) -> Relatives:
    """Who averages with whom: by the evidence, or by a threshold γ and Ward's method (Algorithm 2, lines 15-18)."""
    if options.gamma == "auto" and options.case != 1:
        planes = layouts(centroids, positions, options)
        found = _by_evidence(planes, centroids, options)
        if found is not None:
            labels, text, clearest = found
            # Newcomers are placed in the layout that shows the clusters best.
            return Relatives(ids, centroids, planes[clearest], None, labels[:, None] == labels[None, :], text)
    distances = DISTANCES[options.distance](positions)
    gamma = clearest_gamma(distances, longest) if isinstance(options.gamma, str) else float(options.gamma)
    near = related(distances, gamma)
    share = (np.count_nonzero(near) - len(ids)) / max(1, len(ids) * (len(ids) - 1))
    text = f"γ = {gamma:.3g}: {100 * share:.0f} % of the pairs are related"
    if options.case != 2:
        return Relatives(ids, centroids, positions, gamma, near, text)
    if options.clusters is not None and share in (0, 1) and not isinstance(options.gamma, str):
        apart = distances[np.triu_indices(len(ids), 1)]
        raise ConfigError(
            f"gamma={gamma:g} relates {'nobody' if share == 0 else 'everybody'} (distances are {apart.min():.3g} to "
            f"{apart.max():.3g}), which leaves no ground for {options.clusters} clusters: choose it within, or auto"
        )
    labels = ward_clusters(near, options.clusters, options.ward == "unit")
    text += f", {_sizes(labels)}"
    return Relatives(ids, centroids, positions, None, labels[:, None] == labels[None, :], text)


def layouts(
    centroids: npt.NDArray[np.float32], positions: npt.NDArray[np.float32], options: FLT
) -> list[npt.NDArray[np.float32]]:
    """The positions `(M, k, u)` of the centroids, and others that UMAP gives them from other random states."""
    count = min(LAYOUTS, max(1, MOST_LAID_OUT // max(1, int(real_centroids(positions).sum()))))
    states = range(options.umap_seed + 1, options.umap_seed + count)
    return [positions, *(project(centroids, state, options.neighbours, options.components) for state in states)]


def _by_evidence(
    planes: Sequence[npt.NDArray[np.float32]], centroids: npt.NDArray[np.float32], options: FLT
) -> tuple[npt.NDArray[np.int64], str, int] | None:
    """Labels `(M,)` by the words that clients share, in words too, and the plane that shows them best.

    None where case=auto prefers the graph.
    """
    if options.clusters is not None:
        counts = [count_words(positions) for positions in planes]
        together = [own for each in counts for own in each]
        labels = cut(word_merges(together), options.clusters) if len(planes[0]) > 1 else np.zeros(1, dtype=np.int64)
        return labels, f"as asked, {_sizes(labels)} by shared patches of centroids", clearest_layout(counts, labels)
    # Words are the same for many clients: how far a client's are from others' says nothing of its inputs.
    own = None if options.signature == "words" else centroids
    found = find_families(*planes, seed=options.umap_seed, centroids=own)
    if options.case == "auto" and not found.several and unlike(count_words(planes[0])[0], options.umap_seed):
        return None
    return found.labels, f"{found.describe()}: {_sizes(found.labels)}", found.layout


def _sizes(labels: npt.NDArray[np.int64]) -> str:
    sizes = np.bincount(labels)
    return "one family" if len(sizes) == 1 else f"{len(sizes)} clusters of sizes {', '.join(map(str, sizes))}"


def check_clusters(clusters: int | None, server: Server) -> None:
    """Refuse more clusters than there are clients."""
    if clusters is not None and clusters > len(server.clients):
        raise ConfigError(f"clusters={clusters} with {len(server.clients)} clients: ask for at most one per client")
