"""Secure sums between a server and clients that only exchange messages: the server's side of the protocol.

It works on anything that carries tasks. Clients that do not answer an exchange are left out of the rest; a cluster's
sum is opened while two thirds of those who offered keys come through, and never below the minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.engines.base import Fault
from coterie.errors import ConfigError
from coterie.parameters import Layout, span_size
from coterie.privacy.noisy_sum import sum_quantiser
from coterie.privacy.secure_sum import SEALED_BYTES, SHARE_BYTES, NotOpened, PublicKeys, open_sum
from coterie.privacy.secure_tasks import (
    Masked,
    OfferKeys,
    Reveal,
    ShareSecrets,
    as_bytes,
    as_numbers,
    open_keys,
    whole,
)
from coterie.tasks import Choose, Evaluate, Train
from coterie.tasks.base import Reduction, Reply, ReplyBlock, Request, SumNoise

Carry = Callable[[Sequence[Request]], Iterator[ReplyBlock]]
"""Sends requests and gives the replies that come back."""


@dataclass
class Cluster:
    """One sum: its members' tasks by number, and what they have sent so far."""

    tasks: dict[int, Request]
    weights: dict[int, float]
    noise: SumNoise | None = None
    keys: dict[int, PublicKeys] = field(default_factory=dict)
    offered: dict[int, Tensor] = field(default_factory=dict)
    """The keys as they came, with what vouches for them."""
    boxes: dict[int, dict[int, bytes]] = field(default_factory=dict)
    trained: dict[int, Reply] = field(default_factory=dict)
    shares: dict[int, dict[int, int]] = field(default_factory=dict)

    @property
    def threshold(self) -> int:
        """How many shares open a secret: two thirds of those who offered keys."""
        return -(-2 * len(self.keys) // 3)

    def number_of(self, client: str) -> int:
        """A member's number."""
        return next(number for number, request in self.tasks.items() if request.client == client)


class SecureExchange:
    """Forms the weighted sums of a round without seeing an update. `carry` sends tasks; `limit` and `minimum` are as
    in `SecureEngine`, `layout` is the vectors'. What keeps a sum closed is added to `faults`."""

    def __init__(self, carry: Carry, layout: Layout, limit: float, minimum: int, faults: list[Fault]) -> None:
        self.carry, self.layout, self.limit, self.minimum, self.faults = carry, layout, limit, minimum, faults

    def run(self, requests: Sequence[Request], reduce: Reduction) -> ReplyBlock:
        """The replies without their vectors in the order of the requests, and the sums by group in float64."""
        trains, groups, more = self._chosen(requests, reduce)
        clusters: dict[int, Cluster] = {}
        for i, (request, group) in enumerate(zip(trains, groups, strict=True)):
            if request is not None and group is not None:
                cluster = clusters.setdefault(group, Cluster({}, {}, reduce.noise))
                number = len(cluster.tasks) + 1
                cluster.tasks[number], cluster.weights[number] = request, float(reduce.weights[i])
        self._offer(clusters)
        self._share(clusters)
        self._train(clusters)
        self._reveal(clusters)
        replies: dict[str, Reply] = {}
        sums = {}
        for group, cluster in clusters.items():
            try:
                sums[group] = torch.from_numpy(self._opened(cluster))
            except NotOpened as problem:
                self._close(cluster, str(problem))
                continue
            for reply in cluster.trained.values():
                values = {name: value for name, value in reply.values.items() if name != "masked"}
                replies[reply.client] = replace(reply, values=values | more.get(reply.client, {}), group=group)
        order = [request.client for request in requests if request.client in replies]
        return ReplyBlock([replies[client] for client in order], sums)

    def _chosen(
        self, requests: Sequence[Request], reduce: Reduction
    ) -> tuple[list[Request | None], list[int | None], dict[str, dict[str, object]]]:
        """Each request in a known group; clients that choose their model are asked first, and then train it."""
        trains: list[Request | None] = []
        groups: list[int | None] = []
        more: dict[str, dict[str, object]] = {}
        choices = self._choices([r for r in requests if isinstance(r.task, Choose)])
        for request, given in zip(requests, reduce.groups, strict=True):
            task = request.task
            if not isinstance(task, Choose):
                trains.append(request)
                groups.append(reduce_group(given, 0))
            elif task.training is not None:
                found = choices.get(request.client)
                if found is not None:
                    more[request.client] = {"losses": found}
                    choice = min(range(len(found)), key=lambda i: (found[i] != found[i], found[i]))
                    groups.append(reduce_group(given, choice))
                    trains.append(Request(request.client, Train(task.models[choice], task.training, task.seed)))
                else:
                    groups.append(None)
                    trains.append(None)
            else:
                raise ConfigError("gradients of chosen models do not go into a secure sum: use ifca:averaging=model")
        return trains, groups, more

    def _choices(self, requests: Sequence[Request]) -> dict[str, list[float]]:
        """The losses of the offered models with each client that chooses."""
        asked = [
            Request(request.client, Evaluate(request.task.models, "train"))
            for request in requests
            if isinstance(request.task, Choose)
        ]
        return {reply.client: reply.values["loss"] for reply in self._ask(asked)}

    def _offer(self, clusters: Mapping[int, Cluster]) -> None:
        asked = [Request(r.client, OfferKeys(n)) for c in clusters.values() for n, r in c.tasks.items()]
        for cluster, number, reply in self._replies(asked, clusters):
            cluster.keys[number] = open_keys(reply.values["keys"])
            cluster.offered[number] = torch.tensor(reply.values["keys"])

    def _share(self, clusters: Mapping[int, Cluster]) -> None:
        asked = []
        for cluster in self._large(clusters, lambda cluster: len(cluster.keys)):
            numbers = tuple(sorted(cluster.keys))
            keys = torch.stack([cluster.offered[number] for number in numbers])
            task = ShareSecrets(numbers, keys, cluster.threshold, self.minimum)
            asked += [Request(cluster.tasks[number].client, task) for number in numbers]
        for cluster, number, reply in self._replies(asked, clusters):
            data = as_bytes(reply.values["boxes"])
            others = [other for other in sorted(cluster.keys) if other != number]
            cluster.boxes[number] = {
                other: data[i * SEALED_BYTES : (i + 1) * SEALED_BYTES] for i, other in enumerate(others)
            }

    def _train(self, clusters: Mapping[int, Cluster]) -> None:
        asked = []
        for cluster in self._large(clusters, lambda cluster: len(cluster.boxes)):
            largest = max(cluster.weights.values())
            for number in cluster.boxes:
                senders = tuple(sender for sender in sorted(cluster.boxes) if sender != number)
                boxes = torch.stack([as_numbers(cluster.boxes[sender][number]) for sender in senders])
                client, task = cluster.tasks[number]
                share = cluster.weights[number] / largest
                masked = Masked(task, senders, boxes, share, self.limit, len(cluster.keys), cluster.noise)
                asked.append(Request(client, masked))
        for cluster, number, reply in self._replies(asked, clusters):
            cluster.trained[number] = reply

    def _reveal(self, clusters: Mapping[int, Cluster]) -> None:
        asked = []
        for cluster in self._large(clusters, lambda cluster: len(cluster.trained)):
            task = Reveal(tuple(sorted(cluster.trained)), len(cluster.boxes))
            asked += [Request(cluster.tasks[number].client, task) for number in cluster.trained]
        for cluster, number, reply in self._replies(asked, clusters):
            data = as_bytes(reply.values["shares"])
            cluster.shares[number] = {
                other: int.from_bytes(data[i * SHARE_BYTES : (i + 1) * SHARE_BYTES])
                for i, other in enumerate(sorted(cluster.boxes))
            }

    def _opened(self, cluster: Cluster) -> npt.NDArray[np.float64]:
        """The weighted sum `(d,)` of a cluster's updates in float64."""
        if len(cluster.trained) < max(self.minimum, cluster.threshold):
            raise NotOpened(
                f"of its cluster {len(cluster.trained)} clients came through, "
                f"{max(self.minimum, cluster.threshold)} are needed: the sum stays closed"
            )
        masked = {number: whole(reply.values["masked"]) for number, reply in cluster.trained.items()}
        total = open_sum(masked, cluster.shares, cluster.keys, cluster.threshold)
        wide = any(request.task.schema(self.layout).wide for request in cluster.tasks.values())
        needed = max(cluster.threshold, self.minimum)
        quantiser = sum_quantiser(self.limit, len(cluster.keys), wide, cluster.noise, needed)
        return quantiser.decode(total) * max(cluster.weights.values())

    def _large(self, clusters: Mapping[int, Cluster], count: Callable[[Cluster], int]) -> list[Cluster]:
        return [c for c in clusters.values() if count(c) >= max(self.minimum, c.threshold)]

    def _close(self, cluster: Cluster, reason: str) -> None:
        known = {fault.client for fault in self.faults}
        members = [request.client for request in cluster.tasks.values()]
        self.faults += [Fault(client, reason) for client in members if client not in known]

    def _replies(
        self, requests: Sequence[Request], clusters: Mapping[int, Cluster]
    ) -> Iterator[tuple[Cluster, int, Reply]]:
        home = {request.client: cluster for cluster in clusters.values() for request in cluster.tasks.values()}
        for reply in self._ask(requests):
            cluster = home[reply.client]
            yield cluster, cluster.number_of(reply.client), reply

    def _ask(self, requests: Sequence[Request]) -> Iterator[Reply]:
        if requests:
            for block in self.carry(requests):
                yield from block.replies


def refuse_vectors(requests: Sequence[Request], layout: Layout) -> None:
    """ConfigError if a reply would hold a single client's vector."""
    for request in requests:
        schema = request.task.schema(layout)
        if schema.vector is not None and not schema.shown and span_size(schema.private) < schema.vector:
            raise ConfigError(
                "this method needs single updates, which secure sums do not show: use fedavg, ifca, fedcuau, "
                "cfl:projection=1024, flt:signature=words or oneshot:show_models=true"
            )


def reduce_group(given: int | None, choice: int) -> int:
    """The group of a request: the given one, else what the client chose."""
    return choice if given is None else given
