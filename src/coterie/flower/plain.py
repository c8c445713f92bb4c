"""The engine behind the drop-in strategies: it asks nodes only to train and to evaluate, as any Flower app can.

A node is sent weights and sends weights back; the update is their difference. CFL's splits are judged by what nodes
evaluate on. Training some layers with the others frozen (FedCUAU) is done by training all and keeping the update of the
some.

Apps that call `answer_checks` can be asked more: about halves of their data, by which CFL decides elsewhere too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from coterie.engines.base import Capabilities, Engine, Fault, Traffic
from coterie.errors import ConfigError, RunError
from coterie.flower.arrays import Template
from coterie.flower.exchange import Exchange
from coterie.flower.plain_checks import Checks
from coterie.flower.reports import ACCURACY, EVALUATE_LOSS, NO_LOSS, TRAIN_LOSS, Keys, metrics_of, number
from coterie.parameters import gather, scatter
from coterie.randomness import derive, torch_generator
from coterie.tasks import Collect, Evaluate, HalfUpdates, HeldOut, Train
from coterie.tasks.base import Reduction, Reply, ReplyBlock, Request, reduced, tensor_key
from coterie.tasks.staged import LayerUpdate, StagedTraining, trainable_spans
from coterie.tasks.wire import NUMBER, TENSOR_NUMBER, BadReply, in_words

T = TypeVar("T")
PATIENCE = 3
"""Trainings in a row that may fail before a node is let be."""
REST = 10
"""Rounds for which it is let be."""


class Ask(NamedTuple):
    """One message: a model `(d,)` for a client."""

    client: str
    model: Tensor
    proximal: float = 0.0


class TrainReply(NamedTuple):
    """A sound reply to training: the update `(d,)`, its norm, the training loss."""

    update: Tensor
    norm: float
    loss: float


class PlainEngine(Engine):
    """Runs requests to train and to evaluate on the nodes of a grid; client ids are the node ids as text.

    A reply that is late, an error, or not sound is left out and named in `faults`. `sound` and `judged` keep the other
    replies to training and evaluation, without their arrays, until the next `begin`.
    """

    capabilities = Capabilities(remote=True, halves=False)

    def __init__(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        *,
        seed: int = 0,
        keys: Keys | None = None,
        timeout: float = 3600,
        buffers: Sequence[str] | None = None,
    ) -> None:
        self.exchange = Exchange(grid, timeout)
        self.keys, self.seed = keys or Keys(), seed
        self.template = Template.of(initial_arrays, buffers)
        self.layout = self.template.layout
        self.plain_layout = self.layout
        try:
            self._initial = self.template.vector(initial_arrays)
        except BadReply as problem:
            raise ConfigError(f"initial_arrays cannot be used: {problem}") from problem
        self.clients: tuple[str, ...] = ()
        self.samples: dict[str, int] = {}
        self.train_config, self.evaluate_config = ConfigRecord(), ConfigRecord()
        self.sound: list[Message] = []
        self.judged: list[Message] = []
        self._round = 1
        self.known: dict[str, Any] = {}
        self.traffic = Traffic()
        self._checks = Checks(self.exchange, self.layout, self.traffic)
        self._own: dict[str, Tensor] = {}
        self._faults: list[Fault] = []
        self._failures: dict[str, int] = {}
        self._back: dict[str, int] = {}

    def begin(self, t: int) -> int:
        """A round begins: see which nodes are there, and return how many are connected.

        One that has not reported its number of samples gets the median. One that failed too often is no client for a
        while, so that a method which waits for all clients does not wait for it.
        """
        self._round, self.sound, self.judged = t, [], []
        connected = [str(node) for node in sorted(self.exchange.grid.get_node_ids())]
        for client in connected:
            if self._failures.get(client, 0) >= PATIENCE:
                self._failures[client] = PATIENCE - 1  # when it is back, one more failure is enough
                self._back[client] = t + REST
                self._faults.append(Fault(client, f"nothing sound {PATIENCE} times in a row: let be for {REST} rounds"))
        self.clients = tuple(client for client in connected if self._back.get(client, 0) <= t)
        usual = median(self.known.values()) if self.known else 1
        self.samples = {client: self.known.get(client, int(usual)) for client in self.clients}
        return len(connected)

    def look_for_checks(self) -> dict[str, str]:
        """Use checks from now on if all clients that say anything can answer them; those that cannot, and why."""
        unable = self._checks.unable(self.clients)
        self.capabilities = Capabilities(remote=True, halves=unable == {})
        return unable or {}

    def run(self, requests: Sequence[Request], reduce: Reduction | None = None) -> Iterator[ReplyBlock]:
        """Do the requests in one exchange (FedCUAU's stages: two); replies come in the order of the requests."""
        work: dict[type, Callable[[Sequence[Request]], list[Reply]]] = {
            Train: self._train,
            Evaluate: self._evaluate,
            LayerUpdate: self._layer_update,
            StagedTraining: self._staged,
            Collect: self._collect,
            HalfUpdates: self._check,
            HeldOut: self._check,
        }
        kinds = {type(request.task) for request in requests}
        if len(kinds) > 1 or not kinds <= set(work):
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ConfigError(f"{names}: not possible with train and evaluate alone, use coterie.flower.client_app()")
        if not requests:
            return
        replies = work[kinds.pop()](requests)
        place = {request.client: position for position, request in enumerate(requests)}
        positions = [place[reply.client] for reply in replies]
        yield reduced(replies, None if reduce is None else reduce.at(positions))

    def initial_model(self, seed: int) -> Tensor:
        """The initial arrays `(d,)`; for other seeds than the first model's, each array's numbers in a new order.

        Without the network's code this is the nearest to a fresh draw: the same numbers, none where it was.
        """
        model = self._initial.clone()
        if seed != derive(self.seed, "model", 0):
            for entry in self.layout.entries:
                if not entry.buffer:
                    order = torch.randperm(entry.stop - entry.start, generator=torch_generator(seed, entry.name))
                    model[entry.start : entry.stop] = model[entry.start : entry.stop][order]
        return model

    def faults(self) -> list[Fault]:
        """The nodes left out since the last call, and why."""
        faults, self._faults = self._faults, []
        return faults

    def client_states(self) -> dict[str, dict[str, Tensor]]:
        """The models of nodes that train alone: an app that only trains keeps nothing, so they are kept here."""
        return {client: {"private": model} for client, model in self._own.items()}

    def restore_client_states(self, states: dict[str, dict[str, Tensor]]) -> None:
        """Give the nodes back what a checkpoint kept for them."""
        self._own = {client: state["private"] for client, state in states.items()}

    def evaluate(self, asks: Sequence[Ask]) -> list[MetricRecord | None]:
        """Each ask's metrics as its node reports them; None where there is no sound reply."""
        return self._exchange(MessageType.EVALUATE, asks, self.evaluate_config, self._evaluated)

    def _evaluated(self, ask: Ask, message: Message, content: RecordDict) -> MetricRecord:
        metrics = metrics_of(content, self.keys)
        self.judged.append(Message(RecordDict({"metrics": metrics}), reply_to=message))
        self.traffic.up += _metric_bytes(metrics)
        return metrics

    def _train(self, requests: Sequence[Request]) -> list[Reply]:
        asks = [self._ask(request) for request in requests]
        replies = []
        for request, ask, trained in zip(requests, asks, self._trainings(asks), strict=True):
            if trained is None:
                continue
            if request.task.private:  # type: ignore[attr-defined]
                self._own[request.client] = ask.model + trained.update
                trained = trained._replace(update=torch.zeros_like(trained.update), norm=0.0)
            replies.append(self._reply(request.client, trained.update, trained))
        return replies

    def _collect(self, requests: Sequence[Request]) -> list[Reply]:
        """The models that nodes trained alone; no node is asked, for they are kept here."""
        replies = []
        for client, task in requests:
            assert isinstance(task, Collect)
            replies.append(Reply(client, self.samples[client], self._own.get(client, task.model).clone()))
        return replies

    def _check(self, requests: Sequence[Request]) -> list[Reply]:
        config = ConfigRecord({**self.train_config, "server-round": self._round})
        replies, faults = self._checks.ask(requests, self.samples, config)
        self._faults += faults
        return replies

    def _ask(self, request: Request) -> Ask:
        """The message for a request to train; a node that trains alone continues from its own model."""
        task: Any = request.task
        private = getattr(task, "private", ())
        if private and self.layout.complement(self.layout.select(private)):
            raise ConfigError(f"private layers {', '.join(private)}: an app that only trains keeps none to itself")
        model = self._own.get(request.client, task.model) if private else task.model
        return Ask(request.client, model, task.training.proximal)

    def _layer_update(self, requests: Sequence[Request]) -> list[Reply]:
        done = self._trainings([self._ask(request) for request in requests])
        if not any(done):
            reasons = "; ".join(sorted({fault.reason for fault in self._faults}))
            raise RunError(f"no node sent a first update to cluster by: {reasons}")
        replies = []
        for request, trained in zip(requests, done, strict=True):
            if trained is not None and isinstance(request.task, LayerUpdate):
                vector = gather(trained.update, trainable_spans(self.layout, request.task.layers))
                replies.append(self._reply(request.client, vector, trained))
        return replies

    def _staged(self, requests: Sequence[Request]) -> list[Reply]:
        """FedCUAU's round: every node trains the model, then, from what it made of it, each set of cluster layers."""
        first = self._trainings([self._ask(request) for request in requests])
        stages = [self._stages(request, trained) for request, trained in zip(requests, first, strict=True)]
        later = iter(self._trainings([ask for asks in stages for ask in asks]))
        replies = []
        for request, trained, asks in zip(requests, first, stages, strict=True):
            done = [next(later) for _ in asks]
            updates = [stage.update for stage in done if stage is not None]
            if trained is not None and len(updates) == len(done):
                places = self.layout.select(request.task.layers)  # type: ignore[attr-defined]
                parts = [trained.update, *(gather(update, places) for update in updates)]
                replies.append(self._reply(request.client, torch.cat(parts), trained))
        return replies

    def _stages(self, request: Request, first: TrainReply | None) -> list[Ask]:
        """The messages that follow a node's first training: one for each set of cluster layers."""
        task = request.task
        assert isinstance(task, StagedTraining)
        if first is None:
            return []
        asks = []
        for layers in task.specific:
            start = task.model + first.update
            scatter(start, self.layout.select(task.layers), layers)
            asks.append(Ask(request.client, start, task.training.proximal))
        return asks

    def _evaluate(self, requests: Sequence[Request]) -> list[Reply]:
        """Losses of k models, a message each; the data is what the app evaluates on, whatever part was asked for."""
        pairs: list[tuple[str, Any]] = [(client, task) for client, task in requests]
        asks = [Ask(client, model) for client, task in pairs for model in task.models]
        found = iter(self.evaluate(asks))
        replies = [self._scored(client, [next(found) for _ in task.models]) for client, task in pairs]
        return [reply for reply in replies if reply is not None]

    def _scored(self, client: str, given: Sequence[MetricRecord | None]) -> Reply | None:
        """The losses and accuracies of each model with a client, if it evaluated all of them."""
        metrics = [metric for metric in given if metric is not None]
        if len(metrics) < len(given):
            return None
        losses = [number(metric, self.keys.evaluate_loss, EVALUATE_LOSS) for metric in metrics]
        if None in losses:
            self._faults.append(Fault(client, NO_LOSS))
            return None
        accuracies = [number(metric, None, ACCURACY) for metric in metrics]
        values = {"loss": losses, "accuracy": [math.nan if a is None else a for a in accuracies]}
        return Reply(client, self.samples.get(client, 1), values=values)

    def _reply(self, client: str, vector: Tensor, trained: TrainReply) -> Reply:
        values = {"loss": trained.loss, "norm": trained.norm}
        return Reply(client, self.samples[client], vector, values)

    def _trainings(self, asks: Sequence[Ask]) -> list[TrainReply | None]:
        """Let nodes train; None for each that sent nothing sound."""
        found = self._exchange(MessageType.TRAIN, asks, self.train_config, self._trained)
        for ask, trained in zip(asks, found, strict=True):
            self._failures[ask.client] = 0 if trained is not None else self._failures.get(ask.client, 0) + 1
        return found

    def _trained(self, ask: Ask, message: Message, content: RecordDict) -> TrainReply:
        records = content.array_records
        if len(records) != 1:
            raise BadReply(f"it sent {len(records)} ArrayRecords, expected one")
        metrics = metrics_of(content, self.keys)
        update = self.template.vector(next(iter(records.values()))) - ask.model
        norm = float(torch.linalg.vector_norm(update[: self.layout.trainable]))
        if not math.isfinite(norm):
            raise BadReply("its weights are too large to be counted")
        loss = number(metrics, self.keys.train_loss, TRAIN_LOSS)
        self.known[ask.client] = metrics[self.keys.weight]
        self.samples[ask.client] = self.known[ask.client]
        self.sound.append(Message(RecordDict({"metrics": metrics}), reply_to=message))
        self.traffic.up += TENSOR_NUMBER * self.layout.size + _metric_bytes(metrics)
        return TrainReply(update, norm, math.nan if loss is None else loss)

    def _exchange(
        self, kind: str, asks: Sequence[Ask], config: ConfigRecord, read: Callable[[Ask, Message, RecordDict], T]
    ) -> list[T | None]:
        """Send a message for every ask; what `read` makes of each and of its answer, None where that is not sound."""
        records: dict[Hashable, ArrayRecord] = {}
        messages = []
        for ask in asks:
            key = tensor_key(ask.model)
            if key not in records:
                records[key] = self.template.record(ask.model)
            extra = {"proximal-mu": ask.proximal} if ask.proximal else {}
            settings = ConfigRecord({**config, "server-round": self._round, **extra})
            content = RecordDict({self.keys.arrays: records[key], self.keys.config: settings})
            messages.append(self.exchange.message(content, int(ask.client), kind, self._round))
        self.traffic.down += TENSOR_NUMBER * self.layout.size * len(messages)
        self.traffic.exchanges += bool(messages)
        found: list[T | None] = []
        for ask, message, answer in zip(asks, messages, self.exchange.send(messages), strict=True):
            try:
                found.append(read(ask, message, answer.records()))
            except BadReply as problem:
                found.append(None)
                self._faults.append(Fault(ask.client, in_words(str(problem))))
        return found


def _metric_bytes(metrics: MetricRecord) -> int:
    return NUMBER * sum(len(value) if isinstance(value, list) else 1 for value in metrics.values())
