"""FedCUAU (2022), Algorithm 1: clusters by degree of heterogeneity; knowledge flows from homogeneous to heterogeneous.

Stage one, once, measures each client's heterogeneity (`heterogeneity.py`). Stage two: the base method continues
undisturbed as {w^s, w^CC}; beside it every cluster Cj but the last has specific layers w^Cj that only clients of
C1 … Cj train, on shared layers that they do not touch.

Where the paper is silent or slips:
* the shared layers under w^Cj are those the client has just trained, as line 24 of Algorithm 1 reads;
* line 14 has an extra 1/K: the weights already sum to one;
* every w^Cj starts as the base's initial layers, and learns with the base's μ, weighting and server step size;
* private layers (FedPer) learn with {w^s, w^CC} only;
* a client whose first update fails, or that comes later, has no CUAU and joins the last cluster, to do the least harm.
The shared layers are trained by all, so what is one-way in a round is only nearly so over many, unless all layers are
specific.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from coterie.errors import ConfigError
from coterie.methods.averaging import members_of
from coterie.methods.base import Assignment, ClusterInfo, Event, Info, method
from coterie.methods.fedavg import FedAvg, base_method, layers_above
from coterie.methods.heterogeneity import Measure, clusters_in_words, divergences, ranked_clusters
from coterie.methods.needs import Needs
from coterie.methods.nested_sums import nested_sums
from coterie.methods.server import Server
from coterie.parameters import Layout, gather, scatter
from coterie.snapshot import saved
from coterie.tasks import Divergence, Request, StagedTraining


@saved
class State:
    """The base's model with w^CC `(d,)`, the other clusters' layers `(C − 1, h)`, and what stage one found."""

    model: Tensor
    specific: Tensor
    cluster: dict[str, int]
    """Each client's cluster, 0 (C1, the most homogeneous) to C − 1."""
    cuau: dict[str, float]


@method("fedcuau")
class FedCUAU:
    """Clusters by heterogeneity (CUAU), each learning from the more homogeneous ones only, on top of a base method."""

    server_steps: ClassVar[bool] = True
    places_unlabelled: ClassVar[bool] = True
    needs = property(lambda self: Needs("may", (Divergence,), personal=bool(self.base_method().rule().private)))

    base: str = "fedavg"
    """The method underneath, FedAvg or a relative, written as a method: fedprox:mu=0.01, or (fedprox:mu=0.01,…)."""
    clusters: PositiveInt = 4
    """Number of clusters C; 1 is the base method alone."""
    layers: str | tuple[str, ...] = "last"
    """Layers whose update CUAU looks at: names, or "last"."""
    measure: Measure = "halves"
    """How CUAU is measured. halves: the gradients of two halves of a client's data, output by output, which makes it
    independent of the client's size and of the step size. update: the distance of one local update, trained as in the
    rounds; with `steps` that is the paper's."""
    specific: str | PositiveInt | tuple[str, ...] = "last"
    """Layers that each cluster has for itself: names, or how many of the last; "last" is 1. Frozen and private ones
    do not count."""

    def __post_init__(self) -> None:
        self.base_method()

    def base_method(self) -> FedAvg:
        """The method underneath."""
        return base_method(self.base)

    def specific_layers(self, layout: Layout) -> tuple[str, ...]:
        """Names of the layers that each cluster has for itself."""
        return layers_above(self.base, self.specific, layout)

    def start(self, server: Server) -> State:
        count, layout = len(server.clients), server.layout
        if self.clusters > count:
            raise ConfigError(f"clusters={self.clusters}: the federation has {count} clients, use as many or fewer")
        places = layout.select(self.specific_layers(layout))
        cuau = divergences(server, self.layers, measure=self.measure)  # lines 2-8
        cluster = ranked_clusters(cuau, server.clients, self.clusters)  # line 9
        model = self.base_method().start(server).model  # line 10
        specific = gather(model, places).repeat(self.clusters - 1, 1)
        return State(model, specific, cluster, cuau)

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        state, events = self._with_newcomers(state, server)
        base, last = self.base_method(), self.clusters - 1
        requests = self._requests(state, t, server)  # lines 12-13
        whole, *parts = nested_sums(requests, state.cluster, state.specific, base.weighting, server)
        model = server.step(state.model, whole.mean(), lr=base.server_lr)  # line 14: {w^s, w^CC}
        spans = server.layout.select(self.specific_layers(server.layout))
        rows = [
            server.step(old, part.mean(), f"specific-{j}", base.server_lr, spans)  # line 14: w^Cj
            for j, (old, part) in enumerate(zip(state.specific, parts, strict=True))
        ]
        specific = torch.stack(rows) if rows else state.specific
        sizes = [len(own) for own in members_of(state.cluster, server.clients, self.clusters)]
        infos = [ClusterInfo(n, p.mean_loss(), float(p.mean().norm())) for n, p in zip(sizes, parts, strict=False)]
        step = float(whole.mean()[: server.layout.trainable].norm())
        infos.append(ClusterInfo(sizes[last], whole.mean_loss(), step, whole.max_norm))
        events += [clusters_in_words(state.cluster, state.cuau, self.clusters)] if t == 1 else []
        return replace(state, model=model, specific=specific), Info(infos, events)

    def _requests(self, state: State, t: int, server: Server) -> list[Request]:
        """Lines 20-25: train {w^s, w^CC} as the base does (21), then, w^s frozen, w^Cj for j = i … C − 1 (22-24)."""
        layout, rule = server.layout, self.base_method().rule()
        names, private = self.specific_layers(layout), rule.private_layers(layout)
        training, init = rule.training(server.schedule.at(t), layout), server.model_seed() if private else None
        rows = [state.specific[i:] for i in range(self.clusters)]  # what a client of Ci is sent
        requests = []
        for client in server.participants(t):  # line 12
            own, seed = rows[state.cluster[client]], server.seed_of(t, client)
            requests.append(Request(client, StagedTraining(state.model, own, names, training, seed, private, init)))
        return requests

    def _with_newcomers(self, state: State, server: Server) -> tuple[State, list[Event]]:
        """The state with clients that came after stage one in the last cluster, and the event that says so."""
        new = [client for client in server.clients if client not in state.cluster]
        text = f"{', '.join(new)} joined the last cluster, C{self.clusters}"
        state = replace(state, cluster=state.cluster | self.place(state, new, server))
        return state, [Event("joined", text, {"clients": new})] if new else []

    def assignment(self, state: State, server: Server) -> Assignment:
        layout = server.layout
        models = [state.model.clone() for _ in range(self.clusters)]
        for model, layers in zip(models, state.specific, strict=False):
            scatter(model, layout.select(self.specific_layers(layout)), layers)
        cluster = dict.fromkeys(server.clients, self.clusters - 1) | state.cluster
        members = members_of(cluster, server.clients, self.clusters)
        return Assignment(models, members, self.base_method().rule().private_layers(layout))

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The last cluster, as in the rounds: a newcomer has no CUAU, since the fresh model was updated before it."""
        return dict.fromkeys(clients, self.clusters - 1)
