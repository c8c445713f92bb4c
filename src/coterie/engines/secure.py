"""Secure sums in a simulation: the arithmetic of the protocol, its errors and its bytes, without keys and masks.

Every sum that a method asks for is one of whole numbers, as in `privacy.secure_sum`, and a single vector is never given
out: a method that asks for one is refused. Clusters below the minimum size are not opened; their clients become faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.engines.base import Capabilities, Fault
from coterie.engines.local import LocalEngine
from coterie.engines.secure_exchange import reduce_group, refuse_vectors
from coterie.errors import ConfigError
from coterie.privacy.noisy_sum import sum_quantiser
from coterie.privacy.secure_sum import traffic
from coterie.privacy.sum_terms import NotOpened, check_weights, least_threshold
from coterie.tasks.base import Reduction, Reply, ReplyBlock, Request, SumNoise


class SecureEngine(LocalEngine):
    """A federation on this machine whose updates are seen in sums only.

    `limit` is how large a number of an update may be; larger ones are cut. A cluster of fewer than `minimum` clients is
    not opened, and more than two thirds of a cluster must come through.
    """

    def __init__(self, *args: Any, limit: float = 1.0, minimum: int = 3, **options: Any) -> None:
        super().__init__(*args, **options)
        if minimum < 2:
            raise ConfigError(f"minimum={minimum}: a sum of fewer than 2 is no sum, and of 2 each knows the other's")
        self.limit, self.minimum = limit, minimum
        self.capabilities = Capabilities(secure=True, least_in_sum=minimum)

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        """Do the requests; with `reduce` the vectors come as secure sums, without it there may be none."""
        if reduce is None:
            refuse_vectors(requests, self.layout)
            yield from super().run(requests)
            return
        place = {request.client: i for i, request in enumerate(requests)}
        wide = any(request.task.schema(self.layout).wide for request in requests)
        replies, sums = [], {}
        for group, own in self._by_group(requests, reduce, place).items():
            weights = [float(reduce.weights[place[reply.client]]) for reply in own]
            why_closed = self._why_closed(weights)
            if why_closed is not None:
                self._faults += [Fault(reply.client, why_closed) for reply in own]
                continue
            sums[group] = self._opened(own, weights, wide, reduce.noise)
            replies += own
        order = sorted(replies, key=lambda reply: place[reply.client])
        hidden = self._hidden_norms(requests, reduce)
        yield ReplyBlock([_seen(reply, reply.client in hidden) for reply in order], sums)

    def _hidden_norms(self, requests: Sequence[Request], reduce: Reduction) -> set[str]:
        """The clients whose vector's length is not shown: with noise all, for a length would have none."""
        if reduce.noise is not None:
            return {request.client for request in requests}
        return {request.client for request in requests if request.task.schema(self.layout).hides_norm}

    def _by_group(
        self, requests: Sequence[Request], reduce: Reduction, place: Mapping[str, int]
    ) -> dict[int, list[Reply]]:
        """The replies by the sum they go to."""
        groups: dict[int, list[Reply]] = {}
        for block in super().run(requests):
            for reply in block.replies:
                group = reduce_group(reduce.groups[place[reply.client]], reply.group)
                groups.setdefault(group, []).append(replace(reply, group=group))
        return groups

    def _why_closed(self, weights: Sequence[float]) -> str | None:
        """Why the sum over clients with these weights is not opened, or None."""
        if len(weights) < self.minimum:
            return f"its cluster has {len(weights)} clients: sums of fewer than {self.minimum} stay closed"
        try:
            check_weights(weights, self.minimum)
        except NotOpened as problem:
            return str(problem)
        return None

    def _opened(self, own: Sequence[Reply], weights: Sequence[float], wide: bool, noise: SumNoise | None) -> Tensor:
        """The sum of the replies' vectors as the protocol forms it; its messages are counted."""
        largest = max(weights)
        needed = max(least_threshold(len(own)), self.minimum)
        quantiser = sum_quantiser(self.limit, len(own), wide, noise, needed)
        # No masks, for they cancel: what a network sums up modulo 2^32 are these very words.
        words = [
            quantiser.encode((reply.vector.double() * (weight / largest)).numpy())
            for reply, weight in zip(own, weights, strict=True)
            if reply.vector is not None
        ]
        total = quantiser.decode(np.sum(words, axis=0, dtype=np.uint32))
        sent = traffic(len(own))  # the vectors themselves are counted as replies
        self.traffic.down, self.traffic.up = self.traffic.down + sent.down, self.traffic.up + sent.up
        return torch.from_numpy(total) * largest


def _seen(reply: Reply, hides_norm: bool) -> Reply:
    """What the server sees of a reply beside the sum that its vector is in."""
    values = {name: value for name, value in reply.values.items() if not (hides_norm and name == "norm")}
    return replace(reply, vector=None, values=values)
