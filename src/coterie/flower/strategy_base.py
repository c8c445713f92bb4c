"""The frame of the drop-in strategies: Flower's side of a run, around any of Coterie's methods."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from coterie.errors import ConfigError, RunError, did_you_mean
from coterie.flower.plain import Ask, PlainEngine
from coterie.flower.reports import Keys, usual_names, weighted_metrics
from coterie.flower.strategy_files import StrategyStore, largest_cluster, save_clusters
from coterie.methods import Assignment, Event, Server
from coterie.methods.base import build_method
from coterie.randomness import numpy_generator
from coterie.runs.assemble import describe_method
from coterie.runs.callbacks import Callback
from coterie.runs.loop import execute
from coterie.runs.metrics import ClientScore
from coterie.runs.prepared import Run
from coterie.runs.records import History, RoundRecord, TreeNode, tree_of
from coterie.trainers.base import Training
from coterie.trainers.schedules import LearningRateSchedule

LOG = logging.getLogger("flwr")
MetricsAggregation = Callable[[list[RecordDict], str], MetricRecord]


class Clustered(Strategy):
    """A Flower strategy around one of Coterie's methods, by its `name`; `options` are the method's.

    The first ten parameters are those of Flower's FedAvg. A round needs `min_replies` sound replies. `loss_key` and
    `evaluate_loss_key` name the losses among the metrics of the app, where they have unusual names. `buffers` names
    arrays that are kept rather than trained. With `checkpoint`, a file, the state is saved after each round, and
    `start` resumes from it. With `save_to`, a folder, `start` ends with `save`.
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
        save_to: str | Path | None = None,
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
        self.save_to = None if save_to is None else Path(save_to)
        self.history = History()
        self.state: Any = None
        self._current: Assignment | None = None
        self._server: Server | None = None
        self._engine: PlainEngine | None = None

    @property
    def clusters(self) -> list[list[int]]:
        """Node ids, one list per cluster."""
        return [[int(client) for client in members] for members in self._assignment().members]

    @property
    def models(self) -> list[ArrayRecord]:
        """The arrays of every cluster, in the order of `clusters`."""
        return [self._running().template.record(model) for model in self._assignment().models]

    @property
    def tree(self) -> list[TreeNode]:
        """The clusters that splits made, by id; empty where nothing was split."""
        return tree_of(self.history)

    def model_of(self, node: int) -> ArrayRecord:
        """The arrays that a node is given."""
        models = {served.client: served.model for served in self._assignment().served()}
        if str(node) not in models:
            raise ConfigError(f"no node {node} in the clusters: {did_you_mean(str(node), models)}")
        return self._running().template.record(models[str(node)])

    def save(self, folder: str | Path = ".") -> list[Path]:
        """Write every model that serves a node to `folder`, and `clusters.json`: which nodes are served by which.

        A model's file is `cluster-<id>.pt`, a state dict for `load_state_dict(torch.load(file))`, like the
        `final_model.pt` of Flower's quick-start. `final_model` in the JSON is the id of the one that `result.arrays`
        holds.
        """
        return save_clusters(self._assignment(), self._running().template, Path(folder))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        **later: Any,
    ) -> Result:
        """Run the rounds. `result.arrays` and what `evaluate_fn` sees are the largest cluster's model.

        An argument that a later version of Flower has added is refused, unless it is None.
        """
        for name in (name for name, value in later.items() if value is not None):
            raise ConfigError(f"{name}: {type(self).__name__}.start() has no such argument: leave it out")
        LOG.info("Starting %s strategy: %d rounds", type(self).__name__, num_rounds)
        self.summary()
        engine = self._engine = PlainEngine(
            grid,
            initial_arrays,
            seed=self.seed,
            keys=self.keys,
            timeout=timeout,
            buffers=self.buffers,
        )
        # The app trains by its own config: of this training nothing reaches it but FedProx's μ, which a method may set.
        schedule = LearningRateSchedule(Training(), num_rounds)
        server = self._server = Server(engine, schedule, self.seed, num_rounds, self.fraction_train)
        configs = (train_config or ConfigRecord(), evaluate_config or ConfigRecord())
        frame = Frame(self, Result(arrays=initial_arrays), grid, timeout, *configs, evaluate_fn)
        store = None if self.checkpoint is None else StrategyStore(self.checkpoint, self.method, engine)
        done = self._restored(store)
        self.configure_train(1, initial_arrays, frame.train_config, grid)  # a method may talk before its first round
        self._follow_nodes(max(1, done), server, timeout)
        self._meet(engine)
        frame.judge_here(done)
        labels = {"method": describe_method(self.method), "scenario": "flower", "model": "app", "seed": self.seed}
        run = Run(
            self.method,
            server,
            None,
            None,
            labels,
            {},
            save_every_round=store is not None,
            before_round=frame.before_round,
            evaluate=frame.evaluate,
        )
        finished = execute(run, store, [frame])
        self.history, self.state = finished.history, finished.state
        frame.result.arrays = self._largest()
        self._conclude()
        return frame.result

    def _restored(self, store: StrategyStore | None) -> int:
        """Take the state of the checkpoint, if there is one; the rounds that are done."""
        known = store.checkpoint() if store is not None else None
        self.state = None if known is None else known.state
        return 0 if known is None else known.round

    def _conclude(self) -> None:
        """Log the clusters, and save their models where that was asked for."""
        LOG.info("Finished: clusters of %s nodes", ", ".join(str(len(members)) for members in self.clusters))
        if len(self.clusters) > 1:
            LOG.warning("result.arrays is the model of the largest cluster alone: strategy.save() writes them all")
        if self.save_to is not None:
            LOG.info("Saved: %s", ", ".join(str(path) for path in self.save(self.save_to)))

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
        assignment = self._current or self._assignment()
        return self._running().template.record(assignment.models[largest_cluster(assignment)])

    def _meet(self, engine: PlainEngine) -> None:
        """Ask the nodes what a strategy must know of them, once, when the run begins."""

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


@dataclass
class Frame(Callback):
    """Flower's side of a run: what its own strategies do around a round, as hooks of Coterie's loop."""

    strategy: Clustered
    result: Result
    grid: Grid
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None

    def before_round(self, t: int) -> None:
        """See which nodes are there, and let the strategy set the round's config."""
        strategy = self.strategy
        assert strategy._server is not None
        strategy._follow_nodes(t, strategy._server, self.timeout)
        strategy.configure_train(t, self.result.arrays, self.train_config, self.grid)

    def evaluate(self, assignment: Assignment, t: int) -> list[ClientScore]:
        """Let a sample of the nodes evaluate, each the model it is given; metrics are the app's own."""
        strategy, engine = self.strategy, self.strategy._running()
        strategy._check_enough(engine)
        strategy._current = assignment
        arrays, trained = strategy.aggregate_train(t, engine.sound)
        if arrays is not None:
            self.result.arrays = arrays
        if trained is not None:
            self.result.train_metrics_clientapp[t] = trained
        strategy.configure_evaluate(t, self.result.arrays, self.evaluate_config, self.grid)
        scores = self._scores(assignment, t)
        evaluated = strategy.aggregate_evaluate(t, engine.judged)
        if evaluated is not None:
            self.result.evaluate_metrics_clientapp[t] = evaluated
        return scores

    def _scores(self, assignment: Assignment, t: int) -> list[ClientScore]:
        strategy, engine = self.strategy, self.strategy._running()
        engine.judged = []  # what the method itself let nodes evaluate is no result
        if not strategy.fraction_evaluate:
            return []
        count = max(int(strategy.fraction_evaluate * len(engine.clients)), strategy.min_evaluate_nodes)
        order = numpy_generator(strategy.seed, "evaluate", t).permutation(len(engine.clients))
        chosen = {engine.clients[i] for i in order[:count]}
        served = [one for one in assignment.served() if one.client in chosen]
        reported = engine.evaluate([Ask(one.client, one.model) for one in served])
        scores = []
        for one, metrics in zip(served, reported, strict=True):
            if metrics is not None:
                samples = int(metrics[strategy.keys.weight])  # type: ignore[arg-type]  # metrics_of took one number only
                found = usual_names(metrics, strategy.keys)
                scores.append(ClientScore(one.client, one.cluster, one.model_id, samples, found))
        return scores

    def judge_here(self, t: int) -> None:
        """Let the app's own `evaluate_fn` see the arrays after round `t`."""
        found = self.evaluate_fn(t, self.result.arrays) if self.evaluate_fn else None
        if found is not None:
            self.result.evaluate_metrics_serverapp[t] = found

    def on_start(self, run: Run, done: int) -> None:
        """Say where the run begins, and what it cannot do."""
        if done:
            LOG.info("Resuming after round %d from %s", done, self.strategy.checkpoint)
        for text in run.foreseen():
            LOG.warning("%s", text)

    def on_event(self, t: int, event: Event) -> None:
        """Log what happened."""
        LOG.info("\t%s", event.text)

    def on_round(self, record: RoundRecord) -> None:
        """Log the round, and let the app evaluate."""
        self.strategy.history.append(record)
        means = {name: spread.mean for name, spread in record.metrics.items()}
        LOG.info("[ROUND %d] %d clusters, evaluated: %s", record.round, len(record.clusters), means)
        for fault in record.faults:
            LOG.warning("\tnode %s was left out: %s", fault.client, fault.reason)
        self.judge_here(record.round)
