"""FedCUAU (2022): clusters by degree of heterogeneity; knowledge flows from the homogeneous to the heterogeneous.

Stage one, once: every client updates a fresh random model, and its distance from the mean update (CUAU) says how
unlike the others its data is. An update is longer the more steps a client makes, and noisier the fewer samples it has;
by default CUAU depends on neither (`neutral_cuau`). Stage two: the base method continues undisturbed as {w^s, w^CC};
beside it every cluster Cj but the last has specific layers w^Cj that only clients of C1 … Cj train, on shared layers
that they do not touch.

Where the paper is silent or slips:
* the shared layers under w^Cj are those the client has just trained, as line 24 of Algorithm 1 reads;
* every w^Cj starts as the base's initial layers, and learns with the base's μ, weighting and server step size;
* private layers (FedPer) learn with {w^s, w^CC} only;
* a client whose first update fails or is far too long, or that comes later, has no CUAU and joins the last cluster,
  where it can do the least harm.
The shared layers are trained by all, so what is one-way in a round is only nearly so over many, unless all layers are
specific.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from coterie.clustering import cuau, neutral_cuau, percentile_clusters
from coterie.errors import ConfigError, RunError
from coterie.methods.aggregation import Part, WeightedSum
from coterie.methods.base import Assignment, ClusterInfo, Event, Info, make_method, method
from coterie.methods.fedavg import FedAvg
from coterie.methods.needs import Needs
from coterie.methods.published import Departure
from coterie.methods.server import Server
from coterie.parameters import Layout, gather, scatter, span_size
from coterie.snapshot import saved
from coterie.tasks import Divergence, LayerUpdate, Reply, Request, StagedTraining
from coterie.tasks.staged import layer_outputs, trainable_spans

BASES = "fedavg, fedprox, fedbabu, fedper"
Measure = Literal["halves", "update"]
STEPS = 1
"""Full-batch steps on each half. One is a gradient, so that the step size only scales all values alike; after two CUAU
follows the labels about as closely, after five less (recipe `cuau-sizes`, seeds 10 to 14)."""


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

    @property
    def needs(self) -> Needs:
        """Updates of some layers or, where sums are secure, how far each client's is from their mean."""
        return Needs("may", (Divergence,), personal=bool(self.base_method().rule().private))

    departures: ClassVar[tuple[Departure, ...]] = (
        Departure("measure", "update", "gradients of two halves measure clients' data, not their sizes or the step"),
    )

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
        if "," in re.sub(r"\(.*\)", "", self.base):
            raise ConfigError(f"base={self.base!r}: several options need brackets around them, base=({self.base})")
        self.base_method()

    def base_method(self) -> FedAvg:
        """The method underneath."""
        bracketed = self.base.startswith("(") and self.base.endswith(")")
        made = make_method(self.base[1:-1] if bracketed else self.base)
        if not isinstance(made, FedAvg):
            raise ConfigError(f"method 'fedcuau', option base={self.base!r}: expected one of {BASES}")
        return made

    def specific_layers(self, layout: Layout) -> tuple[str, ...]:
        """Names of the layers that each cluster has for itself."""
        common = self.base_method().rule().common_layers(layout)
        if isinstance(self.specific, int) or self.specific == "last":
            depth = self.specific if isinstance(self.specific, int) else 1
            if depth > len(common):
                raise ConfigError(f"specific={depth}: {self.base} trains {len(common)} layers of this model together")
            return common[-depth:]
        names = (self.specific,) if isinstance(self.specific, str) else self.specific
        ours = [common[-1] if name == "last" else name for name in names]
        open_to_all = layout.select(common)
        for name in ours:
            if any(not _inside(span, open_to_all) for span in layout.select(name)):
                raise ConfigError(
                    f"specific={name!r}: {self.base} freezes it or keeps it private, choose another layer"
                )
        return tuple(ours)

    def start(self, server: Server) -> State:
        count, layout = len(server.clients), server.layout
        if self.clusters > count:
            raise ConfigError(f"clusters={self.clusters}: the federation has {count} clients, use as many or fewer")
        places = layout.select(self.specific_layers(layout))
        values = divergences(server, self.layers, measure=self.measure)
        cluster = ranked_clusters(values, server.clients, self.clusters)  # Algorithm 1, lines 2-9
        model = self.base_method().start(server).model  # line 10
        specific = gather(model, places).repeat(self.clusters - 1, 1)
        return State(model, specific, cluster, values)

    def round(self, state: State, t: int, server: Server) -> tuple[State, Info]:
        layout, base = server.layout, self.base_method()
        rule, names, last = base.rule(), self.specific_layers(layout), self.clusters - 1
        training = rule.training(server.schedule.at(t), layout)
        private = rule.private_layers(layout)
        size, width = len(state.model), span_size(layout.select(names))
        state, events = _with_newcomers(state, last, server)
        rows = [state.specific[i:] for i in range(self.clusters)]  # a client of Ci is sent w^Cj for j = i … C−1
        init = server.model_seed() if private else None
        requests = [
            Request(
                c,
                StagedTraining(
                    state.model, rows[state.cluster[c]], names, training, server.seed_of(t, c), private, init
                ),
            )
            for c in server.participants(t)
        ]

        def parts_of(reply: Reply) -> list[Part]:
            """The base's update for the first sum, and each w^Cj's for its own."""
            assert reply.vector is not None
            whole = Part(0, dataclasses.replace(reply, vector=reply.vector[:size]))
            updates = reply.vector[size:].view(-1, width)
            rows = zip(range(state.cluster[reply.client], last), updates, strict=True)
            return [whole, *(Part(1 + j, _with_vector(reply, update)) for j, update in rows)]

        if server.engine.secure:
            whole, *parts = _secure_sums(requests, state.cluster, size, width, last, base.weighting, server)
        else:
            whole, *parts = server.combine(requests, parts_of, [size] + [width] * last, base.weighting)  # lines 12-13
        # Line 14, without its extra 1/K: the weights already sum to one. A part nobody trained has a mean of zero.
        model = server.step(state.model, whole.mean(), lr=base.server_lr)
        spans = layout.select(names)
        moves = [
            server.step(old, part.mean(), f"specific-{j}", base.server_lr, spans)
            for j, (old, part) in enumerate(zip(state.specific, parts, strict=True))
        ]
        specific = torch.stack(moves) if moves else state.specific
        present = [state.cluster[client] for client in server.clients]
        sizes = np.bincount(present, minlength=self.clusters).tolist()
        infos = [ClusterInfo(n, p.mean_loss(), float(p.mean().norm())) for n, p in zip(sizes, parts, strict=False)]
        step = float(whole.mean()[: layout.trainable].norm())
        infos.append(ClusterInfo(sizes[last], whole.mean_loss(), step, whole.max_norm))
        events += [_told(state, self.clusters)] if t == 1 else []
        return dataclasses.replace(state, model=model, specific=specific), Info(infos, events)

    def assignment(self, state: State, server: Server) -> Assignment:
        layout = server.layout
        places = layout.select(self.specific_layers(layout))
        models = [state.model.clone() for _ in range(self.clusters)]
        for model, layers in zip(models, state.specific, strict=False):
            scatter(model, places, layers)
        last = self.clusters - 1
        members = [[c for c in server.clients if state.cluster.get(c, last) == i] for i in range(self.clusters)]
        return Assignment(models, members, self.base_method().rule().private_layers(layout))

    places_unlabelled: ClassVar[bool] = True

    def place(self, state: State, clients: Sequence[str], server: Server) -> dict[str, int]:
        """The last cluster, as in the rounds: a newcomer has no CUAU, since the fresh model was updated before it."""
        return dict.fromkeys(clients, self.clusters - 1)


def ranked_clusters(values: dict[str, float], clients: Sequence[str], clusters: int) -> dict[str, int]:
    """Each client's cluster by the percentiles of the values; clients without one are in the last, whoever is there."""
    known = [client for client in clients if client in values]
    labels = percentile_clusters([values[client] for client in known], min(clusters, len(known)))
    # With fewer values than clusters the first clusters have one client each.
    return dict.fromkeys(clients, clusters - 1) | dict(zip(known, labels.tolist(), strict=True))


def divergences(
    server: Server,
    layers: str | tuple[str, ...] = "last",
    model: Tensor | None = None,
    t: int = 1,
    measure: Measure = "halves",
) -> dict[str, float]:
    """CUAU of every client (Algorithm 1, lines 2-8): how far its update of a fresh random model is from the mean one.

    All layers train, whatever the base method; only the update of `layers` is sent. A `model` `(d,)` and a round `t`
    ask for CUAU there instead, as in the paper's Figure 1. `measure` as in `FedCUAU`.
    """
    layout = server.layout
    if not span_size(trainable_spans(layout, layers)):
        raise ConfigError(f"layers={layers!r} holds no trainable numbers: name at least one layer")
    start, training = server.initial_model(1) if model is None else model, server.schedule.at(t)
    init = server.model_seed(1) if model is None else None
    if measure == "halves":
        training = dataclasses.replace(training, steps=STEPS, batch_size=None)
    requests = [
        Request(
            c,
            LayerUpdate(
                start,
                training,
                server.seed_of(t, c, "cuau"),
                layers,
                init,
                server.seed_of(t, c, "cuau halves") if measure == "halves" else None,
            ),
        )
        for c in server.clients
    ]
    if server.engine.secure:
        return _told_by_clients(requests, server)
    replies = list(server.ask(requests))
    if not replies:
        raise RunError("no client gave an update to measure heterogeneity by: see the faults of the run")
    # One update that is far too long would draw the mean to itself and turn everybody's distance around.
    clipped = [reply for _, reply in server.clipped([Part(0, reply) for reply in replies])]
    vectors = torch.stack([reply.vector for reply in clipped if reply.vector is not None])
    samples = [server.weight(reply.client, "samples") for reply in clipped]
    if measure == "halves":
        first, second = vectors.chunk(2, dim=1)
        values = neutral_cuau(first, second, samples, layer_outputs(layout, layers))
    else:
        values = cuau(vectors, samples)
    return dict(zip((reply.client for reply in clipped), values.tolist(), strict=True))


def _told_by_clients(requests: Sequence[Request], server: Server) -> dict[str, float]:
    """CUAU where updates are seen in sums only: each client is sent the mean update, and says how far its own is."""
    width = requests[0].task.schema(server.layout).vector
    [total], _ = server.aggregate(requests, "samples", size=width)
    if not total.count:
        raise RunError("no sum of updates to measure heterogeneity by came through: see the faults of the run")
    tasks = {client: task for client, task in requests if isinstance(task, LayerUpdate)}
    mean = total.mean().to(torch.float32)
    asked = [Request(client, Divergence(task, mean)) for client, task in tasks.items()]
    return {reply.client: reply.values["divergence"] for reply in server.ask(asked)}


def _secure_sums(
    requests: Sequence[Request],
    cluster: dict[str, int],
    size: int,
    width: int,
    last: int,
    weighting: str,
    server: Server,
) -> list[WeightedSum]:
    """The sums of the base's updates and of each w^Cj's, from one sum over each cluster's whole vectors."""
    lengths = [size + (last - i) * width for i in range(last + 1)]
    groups = [cluster[request.client] for request in requests]
    found = server.aggregate(requests, weighting, groups, last + 1, lengths).sums
    sums = [WeightedSum(size), *(WeightedSum(width) for _ in range(last))]
    for i, own in enumerate(found):
        rows = [own.total[:size], *own.total[size:].view(-1, width)]
        for total, row in zip([sums[0], *sums[1 + i :]], rows, strict=True):
            total.total += row
            total.weight, total.count = total.weight + own.weight, total.count + own.count
            total.loss, total.max_norm = total.loss + own.loss, max(total.max_norm, own.max_norm)
    return sums


def _with_newcomers(state: State, last: int, server: Server) -> tuple[State, list[Event]]:
    """The state with clients that came after stage one in the last cluster, and the event that tells of them."""
    new = [client for client in server.clients if client not in state.cluster]
    if not new:
        return state, []
    text = f"{', '.join(new)} joined the last cluster, C{last + 1}"
    state = dataclasses.replace(state, cluster=state.cluster | dict.fromkeys(new, last))
    return state, [Event("joined", text, {"clients": new})]


def _with_vector(reply: Reply, vector: Tensor) -> Reply:
    """The reply with another vector, and its norm."""
    norm = float(torch.linalg.vector_norm(vector))
    return dataclasses.replace(reply, vector=vector, values={**reply.values, "norm": norm})


def _inside(span: slice, spans: tuple[slice, ...]) -> bool:
    return any(other.start <= span.start and span.stop <= other.stop for other in spans)


def _told(state: State, clusters: int) -> Event:
    """The clusters of stage one, in words."""
    ranges = []
    for i in range(clusters):
        values = [state.cuau[c] for c, k in state.cluster.items() if k == i and c in state.cuau]
        span = f", CUAU {min(values):.3g} to {max(values):.3g}" if values else ""
        ranges.append(f"C{i + 1} {sum(k == i for k in state.cluster.values())} clients{span}")
    return Event("clustered", f"clustered by heterogeneity: {'; '.join(ranges)}", {"cuau": dict(state.cuau)})
