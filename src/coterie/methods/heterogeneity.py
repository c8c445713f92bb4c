"""How heterogeneous each client is (FedCUAU's stage one): the distance of its update (CU) from the mean one (AU).

Every client updates a fresh random model. An update is longer the more steps a client makes, and noisier the fewer
samples it has; by default CUAU depends on neither (`neutral_cuau`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.clustering import cuau, neutral_cuau, percentile_clusters
from coterie.errors import ConfigError, RunError
from coterie.methods.base import Event
from coterie.methods.server import Server
from coterie.parameters import span_size
from coterie.tasks import Divergence, LayerUpdate, Reply, Request
from coterie.tasks.staged import layer_outputs, trainable_spans

Measure = Literal["halves", "update"]
STEPS = 1
"""Full-batch steps on each half. One is a gradient, so that the step size only scales all values alike; after two CUAU
follows the labels about as closely, after five less (recipe `cuau-sizes`, seeds 10 to 14)."""


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
    if not span_size(trainable_spans(server.layout, layers)):
        raise ConfigError(f"layers={layers!r} holds no trainable numbers: name at least one layer")
    tasks = _tasks(server, layers, model, t, measure)
    if server.sums_only:
        return _measured_by_clients(tasks, server)
    requests = [Request(client, task) for client, task in tasks.items()]
    # One update that is far too long would draw the mean to itself and turn all clients' distances around.
    replies = list(server.ask(requests, [0] * len(requests)))
    if not replies:
        raise RunError("no client gave an update to measure heterogeneity by: see the faults of the run")
    values = _distances(replies, server, layers, measure)  # lines 6-8
    return dict(zip((reply.client for reply in replies), values.tolist(), strict=True))


def _distances(
    replies: Sequence[Reply], server: Server, layers: str | tuple[str, ...], measure: Measure
) -> npt.NDArray[np.float64]:
    """How far each client's update is from the mean of all."""
    vectors = torch.stack([reply.vector for reply in replies if reply.vector is not None])
    samples = [server.weight(reply.client, "samples") for reply in replies]
    if measure == "update":
        return cuau(vectors, samples)
    first, second = vectors.chunk(2, dim=1)
    return neutral_cuau(first, second, samples, layer_outputs(server.layout, layers))


def _tasks(
    server: Server, layers: str | tuple[str, ...], model: Tensor | None, t: int, measure: Measure
) -> dict[str, LayerUpdate]:
    """Lines 4-5: one local update of each client, from the same model."""
    start = server.initial_model(1) if model is None else model
    init = server.model_seed(1) if model is None else None
    how = server.schedule.at(t)
    halves: dict[str, int] = {}
    if measure == "halves":
        how = replace(how, steps=STEPS, batch_size=None)
        halves = {client: server.seed_of(t, client, "cuau halves") for client in server.clients}
    seeds = {client: server.seed_of(t, client, "cuau") for client in server.clients}
    return {c: LayerUpdate(start, how, seed, layers, init, halves.get(c)) for c, seed in seeds.items()}


def _measured_by_clients(tasks: Mapping[str, LayerUpdate], server: Server) -> dict[str, float]:
    """CUAU where updates are seen in sums only: each client is sent the mean update, and says how far its own is."""
    requests = [Request(client, task) for client, task in tasks.items()]
    [total], _ = server.exchange(requests)
    if not total.count:
        raise RunError("no sum of updates to measure heterogeneity by came through: see the faults of the run")
    mean = total.mean().to(torch.float32)
    asked = [Request(client, Divergence(task, mean)) for client, task in tasks.items()]
    return {reply.client: reply.values["divergence"] for reply in server.ask(asked)}


def ranked_clusters(values: dict[str, float], clients: Sequence[str], clusters: int) -> dict[str, int]:
    """Each client's cluster by the percentiles of the values; clients without one are in the last."""
    known = [client for client in clients if client in values]
    labels = percentile_clusters([values[client] for client in known], min(clusters, len(known)))
    # With fewer values than clusters the first clusters have one client each.
    return dict.fromkeys(clients, clusters - 1) | dict(zip(known, labels.tolist(), strict=True))


def clusters_in_words(cluster: Mapping[str, int], values: Mapping[str, float], clusters: int) -> Event:
    """The clusters of stage one as an event."""
    ranges = []
    for i in range(clusters):
        own = [client for client, number in cluster.items() if number == i]
        known = [values[client] for client in own if client in values]
        span = f", CUAU {min(known):.3g} to {max(known):.3g}" if known else ""
        ranges.append(f"C{i + 1} {len(own)} clients{span}")
    return Event("clustered", f"clustered by heterogeneity: {'; '.join(ranges)}", {"cuau": dict(values)})
