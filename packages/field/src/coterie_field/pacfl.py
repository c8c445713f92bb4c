"""PACFL (Vahidian et al. 2023): clusters by the principal angles between the subspaces of clients' data, in one shot.

Each client sends a few leading directions of its inputs, by default of each class that it holds. Two clients are as far
as the nearest two of their subspaces. The angles come from singular values, so that the arbitrary signs of singular
vectors do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import PositiveFloat, PositiveInt

from coterie.errors import ConfigError
from coterie.methods import Assignment, Event, Info, Matrix, Needs, Server, method, saved
from coterie.methods.averaging import FixedClusters, averaged, fixed_assignment, joined, without_cluster
from coterie.methods.published import Paper
from coterie.tasks import Reply
from coterie_field.agglomerative import agglomerate
from coterie_field.papers import PAPERS
from coterie_field.principal_angles import Measure, nearest_subspaces
from coterie_field.subspaces import Subspaces

Floats = npt.NDArray[np.float32]
Bases = tuple[Floats, ...]
"""A client's subspaces, each as orthonormal rows `(p, inputs)`."""
THRESHOLDS: dict[Measure, float] = {"smallest": 10.0, "sum": 110.0}
"""Degrees that part the groups of digits-halves, digits-rotated and flt-s1-digits (p = 3, seed 3), by class and whole:
clients of one group are at most 8.1 and 119 apart, 94 in the median; of different groups at least 8.1 and 108, 12 and
144 in the median. Other data have other angles, so that a number of clusters is the surer option."""


@saved
class State:
    """The clusters, and the bases by which newcomers find one."""

    clusters: FixedClusters
    bases: dict[str, list[Floats]]
    """The subspaces of each client that has a cluster."""
    distances: Floats
    """Degrees `(M, M)` between the clients that were there at the start, in the order of `bases`."""


@method("pacfl")
class PACFL:
    """Clusters clients once, before training, by the principal angles between subspaces of their inputs.

    FedAvg runs in each cluster. A client that comes later joins the cluster whose clients are nearest on average by the
    same angles. What clients send is not hidden by masks or secure sums, which are therefore refused.
    """

    paper: ClassVar[Paper] = PAPERS["pacfl"]
    server_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs(tasks=(Subspaces,), of_data="directions of the clients' inputs")

    p: PositiveInt = 3
    """Directions that a client sends of each class, or of all of its data."""
    per: Literal["class", "client"] = "class"
    """A subspace for each class that a client holds, which shows the server the classes, or one for all of its data."""
    measure: Measure = "smallest"
    """How far two subspaces are: their smallest principal angle, or the sum of all."""
    linkage: Literal["single", "complete", "average"] = "average"
    """How far two clusters are: their nearest, farthest or mean pair of clients."""
    threshold: PositiveFloat | None = None
    """Clusters at this many degrees or nearer are merged, where no number of clusters is given; none: 10 for the
    smallest angle, 110 for the sum."""
    clusters: PositiveInt | None = None
    """Number of clusters; none: the threshold decides."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client in its cluster's mean: its number of samples, or one."""

    def start(self, server: Server) -> State:
        if self.clusters is not None and self.clusters > len(server.clients):
            raise ConfigError(f"clusters={self.clusters} with {len(server.clients)} clients: ask for at most one each")
        bases = self._bases(server.clients, server)
        if not bases:
            raise ConfigError("no client sent directions of its data: see the faults of the run")
        distances = self._distances(list(bases.values()))
        threshold = (self.threshold or THRESHOLDS[self.measure]) if self.clusters is None else None
        labels = agglomerate(distances, self.linkage, clusters=self.clusters, threshold=threshold).tolist()
        models = server.initial_model().repeat(max(labels) + 1, 1)
        clusters = FixedClusters(models, dict(zip(bases, labels, strict=True)))
        return State(clusters, {client: list(own) for client, own in bases.items()}, distances.astype(np.float32))

    def _bases(self, clients: Sequence[str], server: Server) -> dict[str, Bases]:
        """The subspaces of the clients that answer soundly, as long as most others' are."""
        task = Subspaces(self.p, self.per == "class")
        found = {reply.client: cut for reply in server.ask_all(clients, task) if (cut := opened(reply))}
        if not found:
            return {}
        [(length, _)] = Counter(own[0].shape[1] for own in found.values()).most_common(1)
        return {client: own for client, own in found.items() if own[0].shape[1] == length}

    def _distances(self, bases: Sequence[Bases]) -> npt.NDArray[np.float64]:
        """Degrees `(M, M)` between every two clients."""
        found = np.zeros((len(bases), len(bases)))
        for i in range(1, len(bases)):
            found[i, :i] = found[:i, i] = nearest_subspaces(bases[i], bases[:i], self.measure)
        return found

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        late = without_cluster(state.clusters, server)
        bases = self._bases(late, server) if late else {}
        clusters, events = joined(state.clusters, self._nearest(state, bases))
        matrices = []
        if t == 1:
            sizes = [list(state.clusters.cluster_of.values()).count(j) for j in range(len(state.clusters.models))]
            events.append(Event("clustered", f"principal angles: clusters of {sizes}", {"sizes": sizes}))
            meaning = "principal angles of inputs, degrees"
            matrices = [Matrix("angles", tuple(state.bases)[: len(state.distances)], state.distances, meaning, False)]
        clusters, info = averaged(clusters, t, server, self.weighting)
        known = state.bases | {client: list(own) for client, own in bases.items()}
        return State(clusters, known, state.distances), Info(info.clusters, events, matrices=matrices)

    def assignment(self, state: State, server: Server) -> Assignment:
        return fixed_assignment(state.clusters, server)

    @property
    def places_unlabelled(self) -> bool:
        """Whether newcomers need no labels: they do where there is a subspace for each class."""
        return self.per == "client"

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The cluster whose clients are nearest to each newcomer on average, by the same angles."""
        return self._nearest(state, self._bases(clients, server))

    def _nearest(self, state: State, bases: Mapping[str, Bases]) -> dict[str, int]:
        cluster_of = np.array([state.clusters.cluster_of[client] for client in state.bases])
        theirs = list(state.bases.values())
        found = {}
        for client, own in bases.items():
            if own[0].shape[1] == theirs[0][0].shape[1]:
                degrees = nearest_subspaces(own, theirs, self.measure)
                means = {j: float(degrees[cluster_of == j].mean()) for j in np.unique(cluster_of).tolist()}
                found[client] = min(means, key=lambda j: means[j])
        return found


def opened(reply: Reply) -> Bases | None:
    """The subspaces in a reply; None where they do not fit together."""
    rows, ranks = reply.values["bases"].numpy(), [int(rank) for rank in reply.values["ranks"]]
    if sum(ranks) != len(rows):
        return None
    return tuple(np.split(rows, np.cumsum(ranks)[:-1]))
