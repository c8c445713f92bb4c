"""A method's view of the federation: ids, sizes and replies, and the few things a server can do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.engines.base import Engine, Traffic
from coterie.errors import ConfigError
from coterie.methods.aggregation import Aggregation, Part, WeightedSum, capped_weights
from coterie.methods.needs import Needs, check_requests
from coterie.methods.server_optimizer import Moments, ServerOptimizer
from coterie.parameters import Layout, gather
from coterie.privacy.user_level import UserPrivacy
from coterie.randomness import derive, numpy_generator
from coterie.snapshot import saved
from coterie.tasks import Reduction, Reply, ReplySchema, Request, Task, Train
from coterie.trainers.base import PIECE, SumNoise, Training


class Schedule(Protocol):
    """How local training changes over the rounds."""

    def at(self, t: int) -> Training:
        """The training of round `t`, counted from 1."""
        ...


class Exchange(NamedTuple):
    """The weighted sum of each cluster, and the replies, without their vectors unless these were kept."""

    sums: list[WeightedSum]
    replies: list[Reply]


@saved
class ServerState:
    """What the server keeps from round to round beside the method's state: a checkpoint holds it whole."""

    moments: dict[str, Moments] = field(default_factory=dict)
    """The optimiser's, by cluster."""
    shortened: list[str] = field(default_factory=list)
    """Clients whose updates were shortened and that no record names yet."""


@dataclass
class Server:
    """A method's view of the federation. It holds no data and no hidden groups.

    Example:
        A round of FedAvg::

            requests = server.training_requests(server.participants(t), model, t)
            [total], replies = server.exchange(requests)
            model = server.step(model, total)
    """

    engine: Engine
    schedule: Schedule
    seed: int
    rounds: int
    participation: float = 1.0
    aggregation: Aggregation = field(default_factory=Aggregation)
    """How updates become one."""
    user_privacy: UserPrivacy | None = None
    """Noise on every sum; None: no noise."""
    optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)
    """What the server makes of a cluster's mean update; by default nothing."""
    needs: Needs | None = None
    """What the method declares; it is held to that. None: it declares nothing, and may ask for anything."""
    cut: set[str] = field(default_factory=set)
    """Clients whose updates were shortened since the run's loop last looked."""
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
        update: Tensor | WeightedSum,
        cluster: int | str = 0,
        lr: float = 1.0,
        spans: tuple[slice, ...] | None = None,
    ) -> Tensor:
        """A cluster's model after its mean update, by the run's server optimiser: one call per cluster and round.

        Args:
            model: the cluster's model `(d,)`, or the part of it at `spans`.
            update: the mean of its clients' updates, of the same shape, or their weighted sum.
            cluster: what the cluster is known by in all rounds; its moments are kept under this name.
            lr: what the step is multiplied by, beside the optimiser's own step size.
            spans: where the numbers stand in the vector; None: they are all of it.
        """
        if self.optimizer.rule == "none":
            if isinstance(update, WeightedSum):
                return apply_update(model, update.total, lr, update.weight or 1.0)
            return apply_update(model, update, lr)
        update = update.mean() if isinstance(update, WeightedSum) else update
        trainable = torch.arange(self.layout.size) < self.layout.trainable
        if spans is not None:
            trainable = gather(trainable, spans)
        return apply_update(model, self.optimizer.direction(str(cluster), update, trainable), lr)

    def steps_to(self, before: Sequence[Tensor], means: Tensor, clusters: Sequence[int | str]) -> Tensor:
        """The models `(n, d)` of clusters whose clients' models have these means: the means, or a step towards each."""
        if self.optimizer.rule == "none":
            return means
        rows = zip(before, means, clusters, strict=True)
        return torch.stack([self.step(old, new.double() - old.double(), cluster) for old, new, cluster in rows])

    @property
    def traffic(self) -> Traffic:
        """The bytes sent so far."""
        return self.engine.traffic

    def state(self) -> ServerState:
        """What a checkpoint holds of the server."""
        return ServerState(dict(self.optimizer.moments), sorted(self.cut))

    def restore(self, state: ServerState) -> None:
        """Continue from what a checkpoint held."""
        self.optimizer.moments = dict(state.moments)
        self.cut = set(state.shortened)

    def report_shortened(self) -> list[str]:
        """The clients whose updates were shortened since this was last called."""
        clients = sorted(self.cut)
        self.cut.clear()
        return clients

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

    @property
    def sums_only(self) -> bool:
        """Whether vectors come in secure sums alone."""
        return self.engine.capabilities.secure

    @property
    def shows_updates(self) -> bool:
        """Whether a method may look at single clients' vectors: not in secure sums, not where sums have noise."""
        return not self.sums_only and self.user_privacy is None

    @property
    def least_in_sum(self) -> int:
        """The fewest vectors that a sum may be of."""
        return self.engine.capabilities.least_in_sum

    @property
    def asks_halves(self) -> bool:
        """Whether clients can be asked about halves of their data: not where they run an app that is not ours."""
        return self.engine.capabilities.halves

    def ask(self, requests: Sequence[Request], groups: Sequence[int] | None = None) -> Iterator[Reply]:
        """Send the requests and give the replies one by one in the same order; clients that fail are missing.

        Args:
            requests: what the clients are asked.
            groups: the cluster of each request, if the vectors are to count in means: those longer than the run's limit
                then come shortened. Without a limit relative to the others of a cluster, no reply waits for another.
        """
        self._check(requests, summed=False)
        return self._replies(requests) if groups is None else self._counted(requests, groups)

    def ask_all(self, clients: Sequence[str], task: Task) -> Iterator[Reply]:
        """The same task for several clients."""
        return self.ask([Request(client, task) for client in clients])

    def exchange(
        self,
        requests: Sequence[Request],
        groups: Sequence[int | None] | None = None,
        *,
        clusters: int = 1,
        weighting: str = "samples",
        size: int | Sequence[int] | None = None,
        keep: Literal["sums", "vectors"] = "sums",
        parts_of: Callable[[Reply], Sequence[Part]] | None = None,
        noise: SumNoise | None = None,
    ) -> Exchange:
        """Send the requests and add up the replies' vectors by cluster, as the run asks for it.

        Sums are formed where the vectors are made. A limit on lengths, a robust rule and noise that the server adds
        need the vectors themselves, which then come here, but to the method only if it keeps them.

        Args:
            requests: tasks whose replies have a vector, at most one per client.
            groups: the cluster of each request, or None for the one that the client chooses; by default 0.
            clusters: how many sums there are.
            weighting: "samples" or "uniform", the weight of a client in its sum.
            size: the numbers in a vector, of all or of each cluster's; by default as the first task's schema says.
            keep: "vectors" gives the replies with their vectors, as they count in the sums.
            parts_of: cuts a reply's vector into parts for several sums, each with a norm; by default all goes to one.
            noise: what the clients of secure sums add, in place of what the run adds to updates; not divided.

        Returns:
            The sums by cluster, and the replies in the order of the requests.
        """
        self._check(requests, summed=keep == "sums" and parts_of is None)
        given = [0] * len(requests) if groups is None else groups
        schema = requests[0].task.schema(self.layout) if requests else ReplySchema(self.layout.size)
        sizes = _sizes((schema.vector or 0) if size is None else size, clusters)
        if keep == "vectors" or parts_of is not None:
            return self._from_vectors(requests, weighting, given, sizes, keep == "vectors", parts_of)
        if noise is not None and self.sums_only:
            return self._from_sums(requests, weighting, given, sizes, noise)
        if self.user_privacy is not None:
            return self._with_noise(requests, given, sizes, self.user_privacy)
        # Of counts and other statistics no vector is looked at, whatever the rule for updates.
        are_updates = not (schema.wide or schema.hides_norm)
        if self.sums_only or self.aggregation.is_plain_mean or not are_updates:
            return self._from_sums(requests, weighting, given, sizes)
        return self._from_vectors(requests, weighting, given, sizes)

    def _check(self, requests: Sequence[Request], summed: bool) -> None:
        """Hold the method to what it declares."""
        if self.needs is not None:
            needs = self.needs if self.user_privacy is None else replace(self.needs, updates="never")
            check_requests(needs, requests, self.layout, summed)

    def _replies(self, requests: Sequence[Request]) -> Iterator[Reply]:
        """The replies as they arrive."""
        for block in self.engine.run(requests):
            yield from block.replies

    def _counted(
        self,
        requests: Sequence[Request],
        groups: Sequence[int | None],
        parts_of: Callable[[Reply], Sequence[Part]] | None = None,
    ) -> Iterator[Reply]:
        """The replies, or their parts, with their cluster as `group`; those whose vectors are too long shortened."""
        group_of = {request.client: group for request, group in zip(requests, groups, strict=True)}

        def whole(reply: Reply) -> list[Part]:
            """The reply in the group given for it, or in the one that the client chose."""
            given = group_of[reply.client]
            return [Part(reply.group if given is None else given, reply)]

        cut = parts_of or whole
        arriving = (part for reply in self._replies(requests) for part in cut(reply))
        limited_by_others = self.aggregation.clip is not None
        for batch in [list(arriving)] if limited_by_others else ([part] for part in arriving):
            for group, reply in self._clipped(batch):
                yield replace(reply, group=group)

    def _from_sums(
        self,
        requests: Sequence[Request],
        weighting: str,
        groups: Sequence[int | None],
        sizes: Sequence[int],
        noise: SumNoise | None = None,
    ) -> Exchange:
        """The weighted sums as the engine forms them, without any vector."""
        weights = [self.weight(request.client, weighting) for request in requests]
        weight_of = {request.client: weight for request, weight in zip(requests, weights, strict=True)}
        sums = [WeightedSum(size) for size in sizes]
        replies = []
        for block in self.engine.run(requests, Reduction(weights, groups, noise)):
            for reply in block.replies:
                sums[reply.group].note(reply, weight_of[reply.client])
            for group, total in block.sums.items():
                sums[group].add_total(total)
            replies += block.replies
        return Exchange(sums, replies)

    def _from_vectors(
        self,
        requests: Sequence[Request],
        weighting: str,
        groups: Sequence[int | None],
        sizes: Sequence[int],
        keep: bool = False,
        parts_of: Callable[[Reply], Sequence[Part]] | None = None,
    ) -> Exchange:
        """The same from the replies' vectors; a mean is formed as they arrive, another rule waits for all."""
        is_mean = self.aggregation.rule == "mean"
        sums = [WeightedSum(size) for size in sizes]
        waiting: list[list[Reply]] = [[] for _ in sizes]
        replies = []
        for reply in self._counted(requests, groups, parts_of):
            if is_mean:
                sums[reply.group].add(reply, self.weight(reply.client, weighting))
            else:
                waiting[reply.group].append(reply)
            replies.append(reply if keep else replace(reply, vector=None))
        if not is_mean:
            sums = [self.summed(own, weighting, size) for own, size in zip(waiting, sizes, strict=True)]
        return Exchange(sums, replies)

    def summed(self, replies: Sequence[Reply], weighting: str, size: int | None = None) -> WeightedSum:
        """The vectors of replies that are here already as one, by the run's rule."""
        weights = [self.weight(reply.client, weighting) for reply in replies]
        return self.aggregation.sum_by_rule(replies, weights, self.layout.size if size is None else size)

    def _with_noise(
        self, requests: Sequence[Request], groups: Sequence[int | None], sizes: Sequence[int], privacy: UserPrivacy
    ) -> Exchange:
        """Sums with noise as means: by how many were expected or, where clients choose, by a noisy count."""
        if len(sizes) > 1 and not privacy.choices:
            raise ConfigError(
                "several sums under differential privacy are divided by noisy numbers of clients, which the account "
                "must know of: declare Needs(choices='seen')"
            )
        if self.sums_only:  # the clients add the noise themselves
            found = self._from_sums(requests, "uniform", groups, sizes, privacy.of_updates())
        else:
            found = self._from_vectors(requests, "uniform", groups, sizes)
            for total in found.sums:
                total.total = privacy.blurred(total.total)
        expected = max(1.0, self.participation * len(self.clients))
        for total in found.sums:
            loss = total.mean_loss()
            total.weight = privacy.blurred_count(total.count) if privacy.choices else expected
            total.loss = 0.0 if loss is None else loss * total.weight
        return found

    def _clipped(self, parts: Sequence[Part]) -> list[Part]:
        """The parts as they count: those too long for their group are shortened, and their clients are noted."""
        after = self.aggregation.within_limits(parts)
        self.cut |= {old.reply.client for old, new in zip(parts, after, strict=True) if new.reply is not old.reply}
        return after

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


def _sizes(size: int | Sequence[int], clusters: int) -> list[int]:
    """The numbers in a vector of each cluster, where one number may stand for all."""
    return [size] * clusters if isinstance(size, int) else list(size)


def apply_update(model: Tensor, step: Tensor, lr: float = 1.0, weight: float = 1.0) -> Tensor:
    """`model + lr · step / weight`, added in float64 and rounded once; a new tensor.

    In pieces: what is made on the way would else be several times as long as the model.
    """
    after = torch.empty_like(model)
    for new, old, move in zip(after.split(PIECE), model.split(PIECE), step.split(PIECE), strict=True):
        new.copy_(old.double() + lr * (move if weight == 1 else move / weight))
    return after
