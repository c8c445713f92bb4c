"""Sums in which the clients of cluster i count from the i-th on: one-way flow, as FedCUAU has it.

A reply's vector is the update of a whole model `(d,)`, then those of the parts `(h,)` that a client of its cluster is
sent: i … C − 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.methods.aggregation import Part, WeightedSum, vector_of
from coterie.methods.server import Server
from coterie.tasks import Reply, Request


def nested_sums(
    requests: Sequence[Request], cluster: Mapping[str, int], parts: Tensor, weighting: str, server: Server
) -> list[WeightedSum]:
    """Send the requests; the sum of all whole updates, then for each of the `parts` `(C − 1, h)` that of its own."""
    if server.sums_only:
        return _from_clusters(requests, cluster, parts, weighting, server)
    size, (last, width) = server.layout.size, parts.shape

    def parts_of(reply: Reply) -> list[Part]:
        """The whole update for the first sum, and each part's for its own."""
        vector = vector_of(reply)
        whole = Part(0, replace(reply, vector=vector[:size]))
        updates = vector[size:].view(-1, width)
        rows = zip(range(cluster[reply.client], last), updates, strict=True)
        return [whole, *(Part(1 + j, _with_vector(reply, update)) for j, update in rows)]

    sizes = [size] + [width] * last
    return server.exchange(requests, weighting=weighting, size=sizes, parts_of=parts_of).sums


def _with_vector(reply: Reply, vector: Tensor) -> Reply:
    """The reply with another vector, and its norm."""
    norm = float(torch.linalg.vector_norm(vector))
    return replace(reply, vector=vector, values={**reply.values, "norm": norm})


def _from_clusters(
    requests: Sequence[Request], cluster: Mapping[str, int], parts: Tensor, weighting: str, server: Server
) -> list[WeightedSum]:
    """The same where single updates are not seen: from one sum over each cluster's whole vectors."""
    size, (last, width) = server.layout.size, parts.shape
    lengths = [size + (last - i) * width for i in range(last + 1)]
    groups = [cluster[request.client] for request in requests]
    found = server.exchange(requests, groups, clusters=last + 1, weighting=weighting, size=lengths).sums
    sums = [WeightedSum(size), *(WeightedSum(width) for _ in range(last))]
    for i, own in enumerate(found):
        rows = [own.total[:size], *own.total[size:].view(-1, width)]
        for total, row in zip([sums[0], *sums[1 + i :]], rows, strict=True):
            total.total += row
            total.weight, total.count = total.weight + own.weight, total.count + own.count
            total.loss, total.max_norm = total.loss + own.loss, max(total.max_norm, own.max_norm)
    return sums
