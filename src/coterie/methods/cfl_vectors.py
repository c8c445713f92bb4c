"""What a check of CFL compares and tries: half-updates as they are, or projections of them and sums over sides.

With a projection no half-update is sent. What is compared are inner products, which projections keep; the steps of the
sides, which the members try, are means, and are summed over each side where the vectors are. Projections with a secret
key hide the half-updates from the server; sketches, which anybody can make, save the room that very many would take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.half_vectors import Floats
from coterie.methods.cfl_likeness import MANY
from coterie.methods.server import Server
from coterie.parameters import Layout
from coterie.privacy.projection import CompareHalves
from coterie.tasks import HalfUpdates, Request, SketchHalves
from coterie.tasks.halves import output_parts, part_width
from coterie.trainers.base import Training

PARTS = 16
"""Parts of the vector that are compared apart: the weights of one output each or, of more, of several."""
PRODUCTS = 2**21
"""Inner products that are kept of one check, at most."""
NUMBERS = 2**30
"""Numbers in the half-updates of a cluster beyond which they are sketched: 4 GB."""
SKETCH = 512
"""Numbers of a sketch; a cosine is off by about 1/√512 = 0.044 (one standard deviation)."""
ROOM = 2**26
"""Numbers in the sketches of a cluster, at most: beyond 65,536 members a sketch has fewer."""


def most_parts(clients: int) -> int:
    """How many parts are compared at most: fewer where so many clients would make too many products."""
    return max(0, min(PARTS, PRODUCTS // (2 * clients) ** 2 - 1))


def sketch_width(members: int, trainable: int) -> int | None:
    """The numbers that a half-update of so many is sketched to where a cluster is so large; None: it is sent whole."""
    if members <= MANY and 2 * members * trainable <= NUMBERS:
        return None
    width = SKETCH
    while 2 * members * width > ROOM:
        width //= 2
    return width if trainable > width else None


class Compared(NamedTuple):
    """Where the numbers of a compared vector belong: the first `whole` to the whole, and the places of each part."""

    whole: int
    parts: list[Tensor]


def compared(layout: Layout, clients: int, projection: int | None) -> Compared:
    """What is compared of each half-update: its own numbers, or those of its projections to `projection` numbers."""
    parts = output_parts(layout, most_parts(clients))
    if projection is None:
        return Compared(layout.trainable, parts)
    width = part_width(parts)
    return Compared(projection, [torch.arange(width) + projection + i * width for i in range(len(parts))])


def grams(vectors: Tensor, what: Compared) -> Floats:
    """Inner products `(P, 2M, 2M)` of `vectors (2M, …)`: of the whole, then of the parts of single outputs."""
    found = [vectors[:, : what.whole], *(vectors[:, part] for part in what.parts)]
    return np.stack([(part @ part.T).numpy() for part in found])


def halves_seed(server: Server, client: str) -> int:
    """The seed of a client's two halves: they stay the same for its whole life."""
    return server.seed_of(0, client, "halves")


def half_updates(clients: Sequence[str], model: Tensor, how: Training, t: int, server: Server) -> list[Request]:
    """Requests for the clients' half-updates from one model."""
    seeds = [(server.seed_of(t, c, "half-updates"), halves_seed(server, c)) for c in clients]
    return [Request(c, HalfUpdates(model, how, *own)) for c, own in zip(clients, seeds, strict=True)]


class Answer(NamedTuple):
    """A client's side of the first question: what is compared `(2, …)`, and its losses."""

    client: str
    vectors: Tensor
    whole: list[float]


def ask_half_updates(
    clients: Sequence[str],
    model: Tensor,
    how: Training,
    t: int,
    server: Server,
    projection: int | None,
    members: int,
    keyed: bool = True,
) -> list[Answer]:
    """The clients' half-updates from one model, or their projections; those that are not finite are left out.

    `members` are as many as the cluster has; projections are `keyed`, or sketches.
    """
    requests = half_updates(clients, model, how, t, server)
    if projection is not None:
        parts, kind = most_parts(members), CompareHalves if keyed else SketchHalves
        requests = [
            Request(client, kind(model, how, task.seed, task.halves, projection, parts))
            for client, task in requests
            if isinstance(task, HalfUpdates)
        ]
    found = []
    for reply in server.ask(requests) if requests else ():
        vectors = reply.values.get("projections") if reply.vector is None else reply.vector.reshape(2, -1)
        if vectors is not None and bool(torch.isfinite(vectors).all()):
            found.append(Answer(reply.client, vectors, reply.values["whole"]))
    return found


def sum_steps(
    sides: Mapping[str, Sequence[str]], model: Tensor, how: Training, t: int, server: Server, weighting: str
) -> dict[str, Tensor]:
    """The mean half-updates `(2, d)` of each side in float64, from sums that are formed where the vectors are.

    `sides` holds the members of the finest sides by name; a side whose name begins another's is made of its parts. A
    side without a sum (too few came through) is missing, and so are those it is a part of.
    """
    names = list(sides)
    clients = {c: names.index(name) for name in names for c in sides[name]}
    requests = half_updates(list(clients), model, how, t, server)
    size = 2 * server.layout.size
    sums = server.aggregate(requests, weighting, list(clients.values()), len(names), size).sums
    steps = {}
    for side in {name[: depth + 1] for name in names for depth in range(len(name))}:
        own = [total for name, total in zip(names, sums, strict=True) if name.startswith(side)]
        if all(total.count for total in own):
            mean = torch.stack([total.total for total in own]).sum(0) / sum(total.weight for total in own)
            steps[side] = mean.reshape(2, -1)
    return steps
