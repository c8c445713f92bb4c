"""A method's view of the federation: ids, sizes and replies, and the few things a server can do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.clustering.conduct import (
    Conduct,
    enough_evidence,
    false_clients,
    lagging_clients,
    reported,
    trusted_clients,
)
from coterie.engines.base import Engine, Traffic
from coterie.methods.aggregation import (
    Aggregation,
    Part,
    Streamed,
    WeightedSum,
    capped_weights,
    followed,
    norms_by_group,
)
from coterie.methods.server_optimizer import ServerOptimizer
from coterie.parameters import Layout, gather
from coterie.privacy.user_level import UserPrivacy
from coterie.randomness import derive, numpy_generator
from coterie.tasks import Reduction, Reply, Request, Task, Train
from coterie.trainers.base import SumNoise, Training


class Schedule(Protocol):
    """How local training changes over the rounds."""

    def at(self, t: int) -> Training:
        """The training of round `t`, counted from 1."""
        ...


class Aggregate(NamedTuple):
    """The weighted sum of each cluster, and the replies without their vectors."""

    sums: list[WeightedSum]
    replies: list[Reply]


@dataclass
class Server:
    """A method's view of the federation. It holds no data and no hidden groups.

    Example:
        A round of FedAvg::

            requests = server.training_requests(server.participants(t), model, t)
            [total], replies = server.aggregate(requests)
            model = server.step(model, total.mean())
    """

    engine: Engine
    schedule: Schedule
    seed: int
    rounds: int
    participation: float = 1.0
    aggregation: Aggregation = field(default_factory=lambda: Aggregation(lenient=True))
    """How updates become one."""
    user_privacy: UserPrivacy | None = None
    """Noise on every sum; None: no noise."""
    optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)
    """What the server makes of a cluster's mean update; by default nothing."""
    cut: set[str] = field(default_factory=set)
    """Clients whose updates were cut or left out since the run's loop last looked."""
    conducts: dict[str, Conduct] = field(default_factory=dict)
    """Whether each client's losses follow its updates, where updates are compared."""
    _weights: tuple[dict[str, int], dict[str, float]] = field(default=({}, {}), repr=False)

    @property
    def clients(self) -> tuple[str, ...]:
        """Ids of all the known clients."""
        return self.engine.clients

    @property
    def samples(self) -> dict[str, int]:
        """Number of training samples of each client."""
        return self.engine.samples

    @property
    def layout(self) -> Layout:
        """Which numbers of a vector belong to which layer."""
        return self.engine.layout

    def step(
        self,
        model: Tensor,
        update: Tensor,
        cluster: int | str = 0,
        lr: float = 1.0,
        spans: tuple[slice, ...] | None = None,
    ) -> Tensor:
        """A cluster's model after its mean update, by the run's server optimiser: one call per cluster and round.

        Args:
            model: the cluster's model `(d,)`, or the part of it at `spans`.
            update: the mean of its clients' updates, of the same shape.
            cluster: what the cluster is known by in all rounds; its moments are kept under this name.
            lr: what the step is multiplied by, beside the optimiser's own step size.
            spans: where the numbers stand in the vector; None: they are all of it.
        """
        if self.optimizer.rule == "none":
            return apply_update(model, update, lr)
        trainable = torch.arange(self.layout.size) < self.layout.trainable
        if spans is not None:
            trainable = gather(trainable, spans)
        return apply_update(model, self.optimizer.direction(str(cluster), update, trainable), lr)

    @property
    def traffic(self) -> Traffic:
        """The bytes sent so far."""
        return self.engine.traffic

    def weight(self, client: str, weighting: str) -> float:
        """A client's weight in a mean: its number of samples up to the aggregation's cap, or one."""
        if weighting != "samples":
            return 1.0
        samples = self.samples
        if self._weights[0] is not samples:
            self._weights = (samples, capped_weights(samples, self.aggregation.weight_cap))
        return self._weights[1][client]

    def participants(self, t: int) -> list[str]:
        """The clients that take part in round `t`, in the federation's order; at least one."""
        if self.user_privacy is not None:  # each by itself, as the account has it
            return self.user_privacy.taking_part(self.clients, self.participation)
        count = max(1, round(self.participation * len(self.clients)))
        if count >= len(self.clients):
            return list(self.clients)
        drawn = numpy_generator(self.seed, "participants", t).choice(len(self.clients), count, replace=False)
        return [self.clients[i] for i in np.sort(drawn)]

    def model_seed(self, index: int = 0) -> int:
        """The seed of initial model number `index`, from which a client can draw it too."""
        return derive(self.seed, "model", index)

    def initial_model(self, index: int = 0) -> Tensor:
        """Freshly initialised parameters `(d,)`; every index is an independent draw."""
        return self.engine.initial_model(self.model_seed(index))

    def seed_of(self, t: int, client: str, purpose: str = "batches") -> int:
        """The seed of a client's random draws in round `t`."""
        return derive(self.seed, purpose, t, client)

    def ask(self, requests: Sequence[Request]) -> Iterator[Reply]:
        """Send the requests and give the replies one by one in the same order; clients that fail are missing."""
        for block in self.engine.run(requests):
            yield from block.replies

    def ask_all(self, clients: Sequence[str], task: Task) -> Iterator[Reply]:
        """The same task for several clients."""
        return self.ask([Request(client, task) for client in clients])

    def aggregate(
        self,
        requests: Sequence[Request],
        weighting: str = "samples",
        groups: Sequence[int | None] | None = None,
        clusters: int = 1,
        size: int | Sequence[int] | None = None,
    ) -> Aggregate:
        """Send the requests and add up the replies' vectors by cluster, where they are made if the engine can do that.

        Args:
            requests: tasks whose replies have a vector, at most one per client.
            weighting: "samples" or "uniform", the weight of a client in its sum.
            groups: the cluster of each request, or None for the one that the client chooses; by default 0.
            clusters: how many sums there are.
            size: the numbers in a vector, of all or of each cluster's; by default as many as in the model.

        Returns:
            The sums by cluster, and the replies without their vectors in the order of the requests.
        """
        given = list(groups) if groups is not None else [0] * len(requests)
        each = self.layout.size if size is None else size
        sizes = [each] * clusters if isinstance(each, int) else list(each)
        if self.user_privacy is not None:
            if self.engine.secure:  # the clients add the noise themselves
                return self._divided(self._summed(requests, "uniform", given, sizes, self.user_privacy.of_updates()))
            return self._with_noise(self._aggregate_vectors(requests, "uniform", given, sizes))
        if self.engine.secure:
            return self._summed(requests, weighting, given, sizes)
        if not self.engine.repeatable or self.aggregation.rule != "mean":
            return self._aggregate_vectors(requests, weighting, given, sizes)
        before = self._before(requests)
        found = self._summed(requests, weighting, given, sizes)
        norms = norms_by_group(Part(reply.group, reply) for reply in found.replies)
        limits = self.aggregation.limits(norms)
        if all(reply.norm <= limits[reply.group].bound for reply in found.replies):
            return found
        # Someone is too long, which is known only now: the vectors are made again, one by one.
        self._rewind(before)
        sound = {reply.client for reply in found.replies}
        pairs = [(request, group) for request, group in zip(requests, given, strict=True) if request.client in sound]
        return self._aggregate_vectors([r for r, _ in pairs], weighting, [g for _, g in pairs], sizes)

    def _with_noise(self, found: Aggregate) -> Aggregate:
        """The sums with noise, divided by how many were expected or, where clients choose, by a noisy count."""
        assert self.user_privacy is not None
        for total in found.sums:
            total.total = self.user_privacy.blurred(total.total)
        return self._divided(found)

    def _divided(self, found: Aggregate) -> Aggregate:
        """Sums with noise as means: by how many were expected or, where clients choose, by a noisy count."""
        assert self.user_privacy is not None
        expected = max(1.0, self.participation * len(self.clients))
        for total in found.sums:
            loss = total.mean_loss()
            total.weight = self.user_privacy.blurred_count(total.count) if self.user_privacy.choices else expected
            total.loss = 0.0 if loss is None else loss * total.weight
        return found

    def _summed(
        self,
        requests: Sequence[Request],
        weighting: str,
        groups: Sequence[int | None],
        sizes: Sequence[int],
        noise: SumNoise | None = None,
    ) -> Aggregate:
        """The weighted sums as the engine forms them, without any vector."""
        weights = [self.weight(request.client, weighting) for request in requests]
        weight_of = {request.client: weight for request, weight in zip(requests, weights, strict=True)}
        sums = [WeightedSum(size) for size in sizes]
        replies = []
        for block in self.engine.run(requests, Reduction(weights, groups, noise)):
            for reply in block.replies:
                sums[reply.group].note(reply, weight_of[reply.client])
            for group, total in block.sums.items():
                sums[group].total += total
            replies += block.replies
        return Aggregate(sums, replies)

    def _aggregate_vectors(
        self, requests: Sequence[Request], weighting: str, groups: Sequence[int | None], sizes: Sequence[int]
    ) -> Aggregate:
        """The same from the replies' vectors, so that each can be looked at."""
        group_of = {request.client: group for request, group in zip(requests, groups, strict=True)}
        replies: list[Reply] = []

        def parts(reply: Reply) -> list[Part]:
            group = group_of[reply.client]
            whole = reply if group is None else replace(reply, group=group)
            replies.append(replace(whole, vector=None))
            return [Part(whole.group, whole)]

        sums = self.combine(requests, parts, sizes, weighting, again=False)
        return Aggregate(sums, replies)

    def combine(
        self,
        requests: Sequence[Request],
        parts: Callable[[Reply], Sequence[Part]],
        sizes: Sequence[int],
        weighting: str = "samples",
        *,
        again: bool = True,
    ) -> list[WeightedSum]:
        """Send the requests, cut every reply's vector into parts for several sums, and average each by the rule.

        Args:
            requests: tasks whose replies have a vector.
            parts: the parts of a reply, each with a vector, a norm, and the sum it goes to.
            sizes: the numbers in a vector of each sum.
            weighting: "samples" or "uniform".
            again: whether an engine that can repeat the requests is asked again when someone was too long.
        """
        rule = self.aggregation
        if rule.rule != "mean":
            found = [part for reply in self.ask(requests) for part in parts(reply)]
            return self._by_rule(found, sizes, weighting)
        sums: list[WeightedSum] = []

        def begin() -> Callable[[Part], None]:
            sums[:] = [WeightedSum(size) for size in sizes]
            return lambda part: sums[part.group].add(part.reply, self.weight(part.reply.client, weighting))

        self.stream(requests, parts, begin, again=again)
        return sums

    def _by_rule(self, parts: Sequence[Part], sizes: Sequence[int], weighting: str) -> list[WeightedSum]:
        kept: list[list[Reply]] = [[] for _ in sizes]
        for group, reply in self.clipped(parts, weighting, step=True):
            kept[group].append(reply)
        weights = [[self.weight(reply.client, weighting) for reply in own] for own in kept]
        return [self.aggregation.combine(*each) for each in zip(kept, weights, sizes, strict=True)]

    def stream(
        self,
        requests: Sequence[Request],
        parts: Callable[[Reply], Sequence[Part]],
        begin: Callable[[], Callable[[Part], None]],
        *,
        again: bool = True,
    ) -> None:
        """Send the requests and pass every part of the replies on, cut to the norm that is allowed in its group
        or left out.

        `begin` makes what takes the parts. An engine that repeats itself passes all on in order, and if someone turns
        out to be too long, begins again. On a network nobody is asked twice, because a second answer could be another:
        there the parts that look too long wait for the others.
        """
        take, rule = begin(), self.aggregation
        if again and rule.clips and self.engine.repeatable:
            before = self._before(requests)
            norms: dict[int, list[float]] = {}
            sound = set()
            for reply in self.ask(requests):
                sound.add(reply.client)
                for part in parts(reply):
                    norms.setdefault(part.group, []).append(part.reply.norm)
                    take(part)
            limits = rule.limits(norms)
            if all(max(found) <= limits[group].bound for group, found in norms.items()):
                return
            self._rewind(before)
            take = begin()
            requests = [request for request in requests if request.client in sound]
        if not rule.clips:
            for reply in self.ask(requests):
                for part in parts(reply):
                    take(part)
            return
        waiting = Streamed(rule, take)
        for reply in self.ask(requests):
            for part in parts(reply):
                waiting.add(part)
        self.cut |= set(waiting.finish())

    def clipped(self, parts: Sequence[Part], weighting: str = "samples", step: bool = False) -> list[Part]:
        """The parts as they count: those too long for their group, or against it, are cut or left out.

        `step` says that the mean of what counts is what the groups' models are moved by. Then clients whose losses have
        not followed such steps so far, or lag far behind the others', are left out too.
        """
        watched = step and self.aggregation.compares
        # A client's loss is of the model that its first part moves: losses say nothing of its other parts.
        firsts = {part.reply.client: part for part in reversed(parts)} if watched else {}
        false = self._false(firsts) if watched else set()
        heard = [part for part in parts if part.reply.client not in false]
        weights = [self.weight(part.reply.client, weighting) for part in heard]
        trusted = trusted_clients(self.conducts) if watched else set()
        after = self.aggregation.clipped(heard, weights, self.layout.trainable, trusted)
        if watched:
            counted = [self.weight(part.reply.client, weighting) for part in after]
            for client, cosine in followed(firsts.values(), after, counted, self.layout.trainable).items():
                self.conducts[client] = replace(self.conducts[client], cosine=cosine)
        whole = {id(part.reply) for part in after}
        self.cut |= {part.reply.client for part in parts if id(part.reply) not in whole}
        return after

    def _false(self, parts: Mapping[str, Part]) -> set[str]:
        """The clients whose losses speak against their updates, now that their parts tell new losses."""
        enough = enough_evidence(self.conducts)
        for client, (group, reply) in parts.items():
            loss = float(reply.values.get("loss", np.nan))
            self.conducts[client] = reported(self.conducts.get(client), group, loss, enough)
        return false_clients(self.conducts) | lagging_clients(self.conducts)

    def _before(self, requests: Sequence[Request]) -> tuple[int, int, dict[str, dict[str, Tensor]] | None]:
        """What has to be put back when the requests are sent again: bytes, and what clients keep to themselves."""
        keeps = any(request.task.keeps_state for request in requests)
        return self.traffic.down, self.traffic.up, self.engine.client_states() if keeps else None

    def _rewind(self, before: tuple[int, int, dict[str, dict[str, Tensor]] | None]) -> None:
        self.traffic.down, self.traffic.up, states = before
        if states is not None:
            self.engine.restore_client_states(states)

    def sum_vectors(
        self, requests: Sequence[Request], groups: Sequence[int], noise: SumNoise | None = None
    ) -> tuple[dict[int, Tensor], list[Reply]]:
        """Send the requests; the unweighted sums of the replies' vectors by group, float64, and the replies without.

        `noise` is what the clients of secure sums add to them.
        """
        sums: dict[int, Tensor] = {}
        replies: list[Reply] = []
        for block in self.engine.run(requests, Reduction([1.0] * len(requests), groups, noise)):
            replies += block.replies
            for group, total in block.sums.items():
                sums[group] = sums[group] + total if group in sums else total
        return sums, replies

    def train(
        self,
        clients: Sequence[str],
        model: Tensor,
        t: int,
        training: Training | None = None,
        private: tuple[str, ...] = (),
    ) -> Iterator[Reply]:
        """Let the clients train from one model with the round's training (or the one given)."""
        return self.ask(self.training_requests(clients, model, t, training, private))

    def training_requests(
        self,
        clients: Sequence[str],
        model: Tensor | Mapping[str, Tensor],
        t: int,
        training: Training | None = None,
        private: tuple[str, ...] = (),
    ) -> list[Request]:
        """Requests to train with the round's training (or the one given).

        Args:
            clients: who is asked.
            model: the model `(d,)` to start from, one for all or one by client.
            t: the round.
            training: how to train; by default as the schedule says.
            private: layers that stay with the clients; they start as in `initial_model()`.
        """
        how = training or self.schedule.at(t)
        init = self.model_seed() if private else None
        models = dict.fromkeys(clients, model) if isinstance(model, Tensor) else model
        return [Request(c, Train(models[c], how, self.seed_of(t, c), private, init=init)) for c in clients]


def apply_update(model: Tensor, step: Tensor, lr: float = 1.0) -> Tensor:
    """`model + lr · step`, added in float64 and rounded once; a new tensor."""
    return (model.double() + lr * step).to(model.dtype)
