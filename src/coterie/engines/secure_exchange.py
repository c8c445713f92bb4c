"""Secure sums between a server and clients that only exchange messages: the server's side of the protocol.

It works on anything that carries tasks. Clients that do not answer an exchange are left out of the rest; a cluster's
sum is opened while more than two thirds of those who offered keys come through, and never below the minimum. A sum in
which shares are found wrong before any vector was sent restarts without those who sent them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.engines.base import Fault
from coterie.errors import ConfigError
from coterie.parameters import Layout
from coterie.privacy.keys import KEY_BYTES
from coterie.privacy.noisy_sum import sum_quantiser
from coterie.privacy.opening import liar, open_sum, unsound_keys
from coterie.privacy.sealing import is_signed
from coterie.privacy.secure_sum import Dealt, box_signed
from coterie.privacy.secure_tasks import (
    Agree,
    CheckShares,
    Masked,
    OfferKeys,
    Reveal,
    ShareSecrets,
    as_bytes,
    as_numbers,
    open_offer,
    pieces,
    task_digest,
    whole,
)
from coterie.privacy.shamir import SHARE_BYTES
from coterie.privacy.sum_terms import NotOpened, Terms, least_threshold, list_text
from coterie.tasks import Choose, Evaluate, Train
from coterie.tasks.base import Reduction, Reply, ReplyBlock, Request, SumNoise

OTHER_KEY = (
    "it signs with another key than is registered for it: give its node the sums-key-file of the list or, where there "
    "is none, a state-dir that outlives a restart"
)


class Members(NamedTuple):
    """What the server knows of a run's clients from their sums so far."""

    blamed: dict[str, str]
    """Clients that did not keep to the protocol, and what they did: they are in no later sum."""
    owners: dict[str, bytes]
    """The public key of each client's own: the operator's list, or registered when it first came."""
    listed: bool = False
    """Whether `owners` is the operator's list, and no others may take part."""

    def knows(self, client: str, owner: bytes) -> bool:
        """Whether a key is the client's; a first one is where there is no list."""
        return (self.owners.get(client) if self.listed else self.owners.setdefault(client, owner)) == owner


Carry = Callable[[Sequence[Request]], Iterator[ReplyBlock]]
"""Sends requests and gives the replies that come back."""


@dataclass
class Cluster:
    """One sum: its members' tasks by number, and what they have sent so far."""

    tasks: dict[int, Request]
    weights: dict[int, float]
    noise: SumNoise | None = None
    offered: dict[int, Tensor] = field(default_factory=dict)
    """The keys as they came, with their certificates."""
    asked: ShareSecrets | None = None
    dealt: dict[int, Dealt] = field(default_factory=dict)
    confirmed: dict[int, Tensor] = field(default_factory=dict)
    trained: dict[int, Reply] = field(default_factory=dict)
    signed: dict[int, Tensor] = field(default_factory=dict)
    shares: dict[int, dict[int, int]] = field(default_factory=dict)
    blamed: dict[int, str] = field(default_factory=dict)
    """Clients that did not keep to the protocol, and what they did."""

    @property
    def terms(self) -> Terms:
        """What the sum is of."""
        assert self.asked is not None
        return self.asked.terms()

    @property
    def threshold(self) -> int:
        """How many shares open a secret: more than two thirds of those who offered keys."""
        return least_threshold(len(self.offered))

    def number_of(self, client: str) -> int:
        """A member's number."""
        return next(number for number, request in self.tasks.items() if request.client == client)

    def without_blamed(self) -> Cluster:
        """The sum from its beginning, of those who offered keys and are not to blame."""
        left = [number for number in self.offered if number not in self.blamed]
        tasks = {i: self.tasks[number] for i, number in enumerate(left, 1)}
        return Cluster(tasks, {i: self.weights[number] for i, number in enumerate(left, 1)}, self.noise)


class SecureExchange:
    """Forms the weighted sums of a round without seeing an update. `carry` sends tasks; `limit` and `minimum` are as
    in `SecureEngine`, `layout` is the vectors'. What keeps a sum closed is added to `faults`; `members` is what is
    known of the clients from earlier sums of the run."""

    def __init__(
        self,
        carry: Carry,
        layout: Layout,
        limit: float,
        minimum: int,
        faults: list[Fault],
        members: Members | None = None,
        name: str = "",
    ) -> None:
        self.carry, self.layout, self.limit, self.minimum, self.faults = carry, layout, limit, minimum, faults
        self.members = members or Members({}, {})
        self.blamed = self.members.blamed
        self.name = name

    def run(self, requests: Sequence[Request], reduce: Reduction) -> ReplyBlock:
        """The replies without their vectors in the order of the requests, and the sums by group in float64."""
        begun, more = self._begun(requests, reduce)
        clusters = self._shared(begun)
        self._train(clusters)
        self._agree(clusters)
        self._reveal(clusters)
        replies: dict[str, Reply] = {}
        sums = {}
        for group, cluster in clusters.items():
            total = self._opened_or_closed(cluster)
            if total is not None:
                sums[group] = torch.from_numpy(total)
                for reply in cluster.trained.values():
                    values = {name: value for name, value in reply.values.items() if name != "masked"}
                    replies[reply.client] = replace(reply, values=values | more.get(reply.client, {}), group=group)
            self._blame(cluster)
        order = [request.client for request in requests if request.client in replies]
        return ReplyBlock([replies[client] for client in order], sums)

    def _begun(
        self, requests: Sequence[Request], reduce: Reduction
    ) -> tuple[dict[int, Cluster], dict[str, dict[str, object]]]:
        """The sums by group with their members, without clients to blame; and what clients that chose have said."""
        trains, groups, more = self._chosen(requests, reduce)
        begun: dict[int, Cluster] = {}
        for request, group, weight in zip(trains, groups, reduce.weights, strict=True):
            if request is None or group is None:
                continue
            if request.client in self.blamed:
                self.faults.append(Fault(request.client, f"left out of secure sums: {self.blamed[request.client]}"))
                continue
            cluster = begun.setdefault(group, Cluster({}, {}, reduce.noise))
            number = len(cluster.tasks) + 1
            cluster.tasks[number], cluster.weights[number] = request, float(weight)
        return begun, more

    def _opened_or_closed(self, cluster: Cluster) -> npt.NDArray[np.float64] | None:
        """The sum, or None where it stays closed; its members become faults then."""
        try:
            return self._opened(cluster)
        except NotOpened as problem:
            cluster.blamed |= problem.culprits
            self._close(cluster, str(problem))
            return None

    def _shared(self, clusters: dict[int, Cluster]) -> dict[int, Cluster]:
        """The sums with their shares dealt and confirmed; one with clients to blame restarts without them."""
        ready: dict[int, Cluster] = {}
        while clusters:
            self._offer(clusters)
            # Honest clients refuse what a cheat is in, and should not be taken for faulty.
            self._share({group: cluster for group, cluster in clusters.items() if not cluster.blamed})
            self._check({group: cluster for group, cluster in clusters.items() if not cluster.blamed})
            for cluster in clusters.values():
                self._blame(cluster)
            ready |= {group: cluster for group, cluster in clusters.items() if not cluster.blamed}
            clusters = {group: cluster.without_blamed() for group, cluster in clusters.items() if cluster.blamed}
        return ready

    def _blame(self, cluster: Cluster) -> None:
        for number, reason in cluster.blamed.items():
            client = cluster.tasks[number].client
            if client not in self.blamed:
                self.blamed[client] = reason
                self.faults.append(Fault(client, reason))

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
        asked = [Request(r.client, OfferKeys(self.name, n)) for c in clusters.values() for n, r in c.tasks.items()]
        for cluster, number, reply in self._replies(asked, clusters):
            cluster.offered[number] = torch.tensor(reply.values["keys"])
        for cluster in clusters.values():
            offered = {n: open_offer(row) for n, row in sorted(cluster.offered.items())}
            cluster.blamed |= unsound_keys(self.name, offered)
            for number in set(offered) - set(cluster.blamed):
                if not self.members.knows(cluster.tasks[number].client, offered[number][0].owner):
                    cluster.blamed[number] = OTHER_KEY

    def _share(self, clusters: Mapping[int, Cluster]) -> None:
        asked = []
        for cluster in self._large(clusters, lambda cluster: len(cluster.offered)):
            numbers = tuple(sorted(cluster.offered))
            keys = torch.stack([cluster.offered[number] for number in numbers])
            tasks = tuple(sorted({task_digest(cluster.tasks[number].task) for number in numbers}))
            weights = tuple(cluster.weights[number] for number in numbers)
            limits = cluster.threshold, self.minimum, self.limit, cluster.noise
            cluster.asked = ShareSecrets(self.name, tasks, numbers, keys, weights, *limits)
            asked += [Request(cluster.tasks[number].client, cluster.asked) for number in numbers]
        for cluster, number, reply in self._replies(asked, clusters):
            assert cluster.asked is not None
            dealt = cluster.asked.dealt_by(number, reply.values)
            digest, keys_of = cluster.terms.digest(), cluster.terms.keys
            if all(
                box_signed(digest, keys_of[number], number, to, box, dealt.commitments[to])
                for to, box in dealt.boxes.items()
            ):
                cluster.dealt[number] = dealt
            else:
                cluster.blamed[number] = "it signed none of the shares that it sent"

    def _check(self, clusters: Mapping[int, Cluster]) -> None:
        asked = []
        for cluster in self._large(clusters, lambda cluster: len(cluster.dealt)):
            for number in cluster.dealt:
                senders = tuple(sender for sender in sorted(cluster.dealt) if sender != number)
                boxes = torch.stack([as_numbers(cluster.dealt[sender].boxes[number]) for sender in senders])
                committed = [b"".join(cluster.dealt[sender].commitments[number]) for sender in senders]
                task = CheckShares(senders, boxes, torch.stack([as_numbers(pair) for pair in committed]))
                asked.append(Request(cluster.tasks[number].client, task))
        for cluster, number, reply in self._replies(asked, clusters):
            self._hear_check(cluster, number, reply)

    def _hear_check(self, cluster: Cluster, number: int, reply: Reply) -> None:
        """Take a client's signature that all shares were right, or judge those that it accuses."""
        proof = as_bytes(reply.values["proof"])
        senders = [sender for sender in sorted(cluster.dealt) if sender != number]
        wrong = [sender for sender, flag in zip(senders, reply.values["wrong"], strict=True) if flag]
        for sender in wrong:
            self._judge(cluster, number, sender, proof[:KEY_BYTES])
        terms = cluster.terms
        if not wrong and is_signed(terms.keys[number].sign, list_text(terms.digest(), "shares", ()), proof):
            cluster.confirmed[number] = torch.tensor(reply.values["proof"])
        elif not wrong:
            cluster.blamed[number] = "it signed that the shares were right with another key"

    def _judge(self, cluster: Cluster, accuser: int, sender: int, evidence: bytes) -> None:
        dealt = cluster.dealt[sender]
        guilty = liar(accuser, sender, evidence, cluster.terms.keys, dealt.boxes[accuser], dealt.commitments[accuser])
        names = {number: cluster.tasks[number].client for number in (accuser, sender)}
        cluster.blamed[guilty] = (
            f"it sent {names[accuser]} a box without the shares that it committed to"
            if guilty == sender
            else f"it accused {names[sender]} of a wrong share that was right"
        )

    def _train(self, clusters: Mapping[int, Cluster]) -> None:
        asked = []
        for cluster in self._large(clusters, lambda cluster: len(cluster.confirmed)):
            numbers = tuple(sorted(cluster.confirmed))
            confirmed = torch.stack([cluster.confirmed[number] for number in numbers])
            for number in numbers:
                client, task = cluster.tasks[number]
                masked = Masked(task, numbers, confirmed, cluster.noise)
                asked.append(Request(client, masked))
        for cluster, number, reply in self._replies(asked, clusters):
            cluster.trained[number] = reply

    def _agree(self, clusters: Mapping[int, Cluster]) -> None:
        asked = []
        for cluster in self._large(clusters, lambda cluster: len(cluster.trained)):
            task = Agree(tuple(sorted(cluster.trained)))
            asked += [Request(cluster.tasks[number].client, task) for number in cluster.trained]
        for cluster, number, reply in self._replies(asked, clusters):
            text = list_text(cluster.terms.digest(), "through", cluster.trained)
            if is_signed(cluster.terms.keys[number].sign, text, as_bytes(reply.values["signature"])):
                cluster.signed[number] = torch.tensor(reply.values["signature"])
            else:
                cluster.blamed[number] = "it signed another list of who came through"

    def _reveal(self, clusters: Mapping[int, Cluster]) -> None:
        asked = []
        for cluster in self._large(clusters, lambda cluster: len(cluster.signed)):
            signers = tuple(sorted(cluster.signed))
            signatures = torch.stack([cluster.signed[number] for number in signers])
            task = Reveal(tuple(sorted(cluster.trained)), signers, signatures, len(cluster.confirmed))
            asked += [Request(cluster.tasks[number].client, task) for number in signers]
        for cluster, number, reply in self._replies(asked, clusters):
            parts = pieces(as_bytes(reply.values["shares"]), SHARE_BYTES)
            shares = zip(sorted(cluster.confirmed), map(int.from_bytes, parts), strict=True)
            cluster.shares[number] = dict(shares)

    def _opened(self, cluster: Cluster) -> npt.NDArray[np.float64]:
        """The weighted sum `(d,)` of a cluster's updates in float64."""
        needed = max(cluster.threshold, self.minimum)
        if len(cluster.trained) < needed:
            raise NotOpened(
                f"of its cluster {len(cluster.trained)} clients came through, {needed} are needed: the sum stays closed"
            )
        masked = {number: whole(reply.values["masked"]) for number, reply in cluster.trained.items()}
        total, culprits = open_sum(masked, cluster.shares, cluster.terms.keys, cluster.dealt, cluster.threshold)
        cluster.blamed |= culprits
        wide = any(request.task.schema(self.layout).wide for request in cluster.tasks.values())
        quantiser = sum_quantiser(self.limit, len(cluster.offered), wide, cluster.noise, needed)
        return quantiser.decode(total) * max(cluster.terms.weights.values())

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
        if schema.shows_vector and not schema.shown:
            raise ConfigError(
                f"this method needs single updates ({type(request.task).__name__}), which secure sums do not show: use "
                "one that needs sums only"
            )


def reduce_group(given: int | None, choice: int) -> int:
    """The group of a request: the given one, else what the client chose."""
    return choice if given is None else given
