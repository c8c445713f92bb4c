"""The frame of the drop-in strategies: Flower's side of a run, around any of Coterie's methods."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from coterie.errors import ConfigError, RunError, did_you_mean
from coterie.flower.plain import Ask, PlainEngine
from coterie.flower.reports import Keys, weighted_metrics
from coterie.flower.standing import Standing, load_standing, save_standing
from coterie.methods import Assignment, Info, Server
from coterie.methods.base import build_method
from coterie.methods.tree import Tree
from coterie.randomness import numpy_generator
from coterie.runs.metrics import plain
from coterie.runs.result import History
from coterie.workbench import Training

LOG = logging.getLogger("flwr")
MetricsAggregation = Callable[[list[RecordDict], str], MetricRecord]


class AsTheAppDoes:
    """The training of every round: what the app makes of its own config."""

    def at(self, t: int) -> Training:
        """Nothing of this reaches the nodes but FedProx's μ, which a method may set."""
        return Training()


class Clustered(Strategy):
    """A Flower strategy around one of Coterie's methods, by its `name`; `options` are the method's.

    The first ten parameters are those of Flower's FedAvg. A round needs `min_replies` sound replies. `loss_key` and
    `evaluate_loss_key` name the losses among the metrics of the app, where they have unusual names. `buffers` names
    arrays that are kept rather than trained. With `checkpoint`, a file, the state is saved after each round, and
    `start` goes on from it.
    """

    name: ClassVar[str] = "fedavg"
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: MetricsAggregation | None = None,
        evaluate_metrics_aggr_fn: MetricsAggregation | None = None,
        *,
        seed: int = 0,
        min_replies: int = 1,
        loss_key: str | None = None,
        evaluate_loss_key: str | None = None,
        buffers: Sequence[str] | None = None,
        checkpoint: str | Path | None = None,
        **options: Any,
    ) -> None:
        if not 0 < fraction_train <= 1 or not 0 <= fraction_evaluate <= 1:
            raise ConfigError(
                f"fraction_train={fraction_train}, fraction_evaluate={fraction_evaluate}: expected fractions up to 1, "
                "the first above 0"
            )
        self.method = build_method(self.name, {**self.defaults, **options})
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_evaluate_nodes = min_train_nodes, min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.keys = Keys(weighted_by_key, arrayrecord_key, configrecord_key, loss_key, evaluate_loss_key)
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or weighted_metrics
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or weighted_metrics
        self.seed, self.min_replies, self.buffers = seed, min_replies, buffers
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.history = History()
        self.state: Any = None
        self._server: Server | None = None
        self._engine: PlainEngine | None = None

    @property
    def clusters(self) -> list[list[int]]:
        """Node ids, one list a cluster."""
        return [[int(client) for client in members] for members in self._assignment().members]

    @property
    def models(self) -> list[ArrayRecord]:
        """The arrays of every cluster, in the order of `clusters`."""
        return [self._running().template.record(model) for model in self._assignment().models]

    @property
    def tree(self) -> Tree | None:
        """How the clusters came about, for methods that split."""
        tree = getattr(self.state, "tree", None)
        return tree if isinstance(tree, Tree) else None

    def model_of(self, node: int) -> ArrayRecord:
        """The arrays that a node is given."""
        assignment, client = self._assignment(), str(node)
        for model, members in zip(assignment.models, assignment.members, strict=True):
            if client in members:
                return self._running().template.record(assignment.exceptions.get(client, model))
        known = [member for members in assignment.members for member in members]
        raise ConfigError(f"no node {node} in the clusters: {did_you_mean(client, known)}")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds. `result.arrays` and what `evaluate_fn` sees are the largest cluster's model."""
        LOG.info("Starting %s strategy: %d rounds", type(self).__name__, num_rounds)
        self.summary()
        engine = self._engine = PlainEngine(
            grid,
            initial_arrays,
            seed=self.seed,
            keys=self.keys,
            timeout=timeout,
            buffers=self.buffers,
            evaluates=self.fraction_evaluate > 0,
        )
        server = self._server = Server(engine, AsTheAppDoes(), self.seed, num_rounds, self.fraction_train)
        self.history, result = History(), Result(arrays=initial_arrays)
        train_config, evaluate_config = train_config or ConfigRecord(), evaluate_config or ConfigRecord()
        self.configure_train(1, initial_arrays, train_config, grid)  # a method may talk before its first round
        done = self._begin(server, timeout)
        self._judge_here(result, done, evaluate_fn)
        for t in range(done + 1, num_rounds + 1):
            began = time.monotonic()
            self._follow_nodes(t, server, timeout)
            self.configure_train(t, result.arrays, train_config, grid)
            self.state, info = self.method.round(self.state, t, server)
            self._check_enough(engine)
            arrays, trained = self.aggregate_train(t, engine.sound)
            if arrays is not None:
                result.arrays = arrays
            if trained is not None:
                result.train_metrics_clientapp[t] = trained
            self.configure_evaluate(t, result.arrays, evaluate_config, grid)
            by_cluster = self._evaluate(t, server)
            evaluated = self.aggregate_evaluate(t, engine.judged)
            if evaluated is not None:
                result.evaluate_metrics_clientapp[t] = evaluated
            self._note(t, info, trained, evaluated, by_cluster, time.monotonic() - began)
            if self.checkpoint is not None:
                save_standing(self.checkpoint, self.method, t, self.state, engine)
            self._judge_here(result, t, evaluate_fn)
        if finish := getattr(self.method, "finish", None):
            self.state = finish(self.state, server)
        result.arrays = self._largest()
        LOG.info("Finished: clusters of %s nodes", ", ".join(str(len(members)) for members in self.clusters))
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Take the round's config. The messages are made when the method asks for them, so there are none to send here.

        Override it to change the config from round to round, and call this one with the changed one.
        """
        self._running().train_config = config
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The largest cluster's arrays, and the metrics of all sound replies; these come without their arrays."""
        contents = [reply.content for reply in replies]
        metrics = self.train_metrics_aggr_fn(contents, self.keys.weight) if contents else None
        return self._largest(), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Take the round's config for evaluation; see `configure_train`."""
        self._running().evaluate_config = config
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics of all sound replies, each node under its own cluster's model."""
        contents = [reply.content for reply in replies]
        return self.evaluate_metrics_aggr_fn(contents, self.keys.weight) if contents else None

    def summary(self) -> None:
        """Log what this strategy is."""
        LOG.info("\t├──> Method: %s", self.method)
        LOG.info("\t├──> Fraction: train (%.2f) | evaluate (%.2f)", self.fraction_train, self.fraction_evaluate)
        LOG.info("\t└──> Weighted by: %r", self.keys.weight)

    def _running(self) -> PlainEngine:
        if self._engine is None:
            raise ConfigError(
                f"{type(self).__name__} talks to the nodes itself: call its start(), it cannot be wrapped in another "
                "strategy"
            )
        return self._engine

    def _assignment(self) -> Assignment:
        if self._server is None or self.state is None:
            raise ConfigError(f"{type(self).__name__} has no clusters yet: call start() first")
        return self.method.assignment(self.state, self._server)

    def _largest(self) -> ArrayRecord:
        assignment = self._assignment()
        sizes = [len(members) for members in assignment.members]
        return self._running().template.record(assignment.models[sizes.index(max(sizes))])

    def _begin(self, server: Server, timeout: float) -> int:
        """Make the first state, or take that of the checkpoint; how many rounds are done."""
        engine = self._running()
        found = None if self.checkpoint is None else load_standing(self.checkpoint, self.method, engine)
        self._follow_nodes(1 if found is None else found.round, server, timeout)
        if isinstance(found, Standing):
            LOG.info("Going on after round %d from %s", found.round, self.checkpoint)
            self.state = found.state
            return found.round
        self.state = self.method.start(server)
        return 0

    def _follow_nodes(self, t: int, server: Server, timeout: float) -> None:
        """Wait until there are enough nodes, and see which they are."""
        engine = self._running()
        needed = max(self.min_available_nodes, self.min_train_nodes)
        deadline = time.monotonic() + timeout
        while (connected := engine.begin(t)) < needed:
            if time.monotonic() >= deadline:
                raise RunError(f"{connected} nodes are connected, {needed} are needed: start more nodes")
            LOG.info("Waiting for nodes: %d connected, %d needed", connected, needed)
            time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
        if not engine.clients:
            raise RunError("every connected node has failed too often: see the faults in the history")
        server.participation = min(1.0, max(self.fraction_train, self.min_train_nodes / len(engine.clients)))

    def _check_enough(self, engine: PlainEngine) -> None:
        if len(engine.sound) < self.min_replies:
            reasons = "; ".join(f"node {fault.client}: {fault.reason}" for fault in engine.faults()[:3])
            raise RunError(f"{len(engine.sound)} sound replies in a round, {self.min_replies} needed: {reasons}")

    def _evaluate(self, t: int, server: Server) -> list[MetricRecord | None]:
        """Let a sample of the nodes evaluate, each the model it is given; the metrics of every cluster."""
        engine, assignment = self._running(), self._assignment()
        if not self.fraction_evaluate:
            return [None] * len(assignment.members)
        count = max(int(self.fraction_evaluate * len(engine.clients)), self.min_evaluate_nodes)
        order = numpy_generator(self.seed, "evaluate", t).permutation(len(engine.clients))
        chosen = {engine.clients[i] for i in order[:count]}
        engine.judged = []  # what the method itself let nodes evaluate is no result
        asks: list[Ask] = []
        clusters: list[int] = []
        for cluster, (model, members) in enumerate(zip(assignment.models, assignment.members, strict=True)):
            own = [client for client in members if client in chosen]
            asks += [Ask(client, assignment.exceptions.get(client, model)) for client in own]
            clusters += [cluster] * len(own)
        found = list(zip(clusters, engine.evaluate(asks), strict=True))
        told = []
        for cluster in range(len(assignment.members)):
            records = [RecordDict({"metrics": m}) for c, m in found if c == cluster and m is not None]
            told.append(self.evaluate_metrics_aggr_fn(records, self.keys.weight) if records else None)
        return told

    def _judge_here(
        self, result: Result, t: int, evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None
    ) -> None:
        found = evaluate_fn(t, result.arrays) if evaluate_fn else None
        if found is not None:
            result.evaluate_metrics_serverapp[t] = found

    def _note(
        self,
        t: int,
        info: Info,
        trained: MetricRecord | None,
        evaluated: MetricRecord | None,
        by_cluster: Sequence[MetricRecord | None],
        seconds: float,
    ) -> None:
        """Add the round to the history and to the log."""
        clusters = self.clusters
        told = [asdict(cluster) for cluster in info.clusters] if len(info.clusters) == len(clusters) else None
        rows = [
            (told[i] if told else {}) | {"members": members, "evaluate": dict(metrics or {})}
            for i, (members, metrics) in enumerate(zip(clusters, by_cluster, strict=True))
        ]
        faults = self._running().faults()
        record = {
            "round": t,
            "clusters": rows,
            "train": dict(trained or {}),
            "evaluate": dict(evaluated or {}),
            "events": [asdict(event) for event in info.events],
            "faults": [fault._asdict() for fault in faults],
            "seconds": round(seconds, 4),
        }
        self.history.append(plain(record))
        LOG.info("[ROUND %d] %d clusters, evaluated: %s", t, len(clusters), dict(evaluated or {}))
        for event in info.events:
            LOG.info("\t%s", event.text)
        for fault in faults:
            LOG.warning("\tnode %s was left out: %s", fault.client, fault.reason)
