"""An unmodified quick-start app (the one in `examples/flower-dropin`) under the clustered strategies."""

from __future__ import annotations

import json
import logging
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dropin_trials import (
    ALL_AT_ONCE,
    EXAMPLE,
    LR,
    Net,
    arrays,
    flat,
    grid_of,
    groups_of,
    load_data,
    server_app,
    started,
)
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from coterie.engines import LocalEngine
from coterie.errors import ConfigError, RunError
from coterie.federation import Client, Federation, Split
from coterie.flower import CFL, FedCUAU, FedSEM, OneShot
from coterie.flower.plain import PlainEngine
from coterie.flower.strategy_base import Clustered
from coterie.methods import Server
from coterie.randomness import derive
from coterie.runs.records import assignments
from coterie.tasks import Choose, Evaluate
from coterie.tasks.base import Request
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule


@pytest.mark.long
def test_cfl_finds_the_groups_of_an_unmodified_app() -> None:
    seen: dict[int, int] = {}
    strategy = CFL(fraction_evaluate=0.7)
    result = started(
        strategy, grid_of(9, 3), 20, evaluate_fn=lambda t, a: seen.update({t: len(a)}) or MetricRecord({"t": t})
    )
    assert sorted(groups_of(strategy, 3)) == [[0], [1], [2]]
    tree = strategy.tree
    assert [node.id for node in tree] == [0, 1, 2, 3, 4]
    leaves = {node.id: [int(client) for client in node.members] for node in tree if not node.children}
    assert sorted(map(sorted, leaves.values())) == sorted(map(sorted, strategy.clusters))
    assert [record.round for record in strategy.history] == list(range(1, 21))
    for number, record in enumerate(strategy.history, 1):
        found = assignments(strategy.history[:number])
        assert sorted(map(int, found)) == list(range(1001, 1010))
        assert Counter(found.values()) == {cluster.id: cluster.members for cluster in record.clusters}
        assert record.faults == []
    before, after = (strategy.history[i].accuracy.mean for i in (2, -1))
    assert before is not None
    assert after is not None
    assert before < 0.4 < 0.75 < after
    # All nodes have equally many samples to evaluate on, so that the weighted mean is the mean.
    assert result.evaluate_metrics_clientapp[20]["eval_acc"] == pytest.approx(after)
    assert 0 < result.train_metrics_clientapp[20]["train_loss"] < result.train_metrics_clientapp[1]["train_loss"]
    assert result.evaluate_metrics_serverapp[3]["t"] == 3
    assert list(seen) == list(range(21))
    assert np.array_equal(flat(result.arrays), flat(strategy.models[0]))
    last = strategy.clusters[-1][0]
    assert np.array_equal(flat(strategy.model_of(last)), flat(strategy.models[-1]))
    net = Net()
    net.load_state_dict(strategy.model_of(last).to_torch_state_dict())
    with pytest.raises(ConfigError, match="no node 7 in the clusters"):
        strategy.model_of(7)


@pytest.mark.long
def test_cfl_leaves_nodes_of_one_kind_together() -> None:
    strategy = CFL()
    started(strategy, grid_of(6, 1), 14)
    assert len(strategy.clusters) == 1


class SameStart(LocalEngine):
    """A local engine that begins with the models a drop-in strategy begins with."""

    other: PlainEngine

    def initial_model(self, seed: int) -> Tensor:
        return self.other.initial_model(seed)


def on_local_engine(strategy: Clustered, nodes: int, groups: int, rounds: int) -> tuple[list[list[int]], list[Tensor]]:
    """Clusters and models of the strategy's method on the engine without Flower, with the same data."""
    clients = []
    for i in range(nodes):
        loaders = load_data(i, nodes, ALL_AT_ONCE, groups)
        train, test = (Split(*loader.dataset.tensors) for loader in loaders)
        clients.append(Client(str(1001 + i), train, test, test))
    engine = SameStart(Federation(clients, 10), lambda seed: Net())
    engine.other = strategy._running()
    how = Training(lr=LR, epochs=2, batch_size=None, momentum=0.9)
    server = Server(engine, make_schedule("constant", how, rounds), strategy.seed, rounds)
    state = strategy.method.start(server)
    for t in range(1, rounds + 1):
        state, _ = strategy.method.round(state, t, server)
    assignment = strategy.method.assignment(state, server)
    return [[int(c) for c in members] for members in assignment.members], list(assignment.models)


@pytest.mark.parametrize(
    "strategy",
    [
        CFL(rule="paper(eps1=100,eps2=1e-9,gamma_max=0.5,wait=3)"),
        FedSEM(clusters=2),
        OneShot(k=2, warmup_rounds=3, weighting="samples"),
        FedCUAU(clusters=2, specific=("fc1", "fc2"), min_replies=6),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_a_strategy_does_what_its_method_does_elsewhere(strategy: Clustered) -> None:
    result = started(strategy, grid_of(6, 2, batch=ALL_AT_ONCE), 5)
    clusters, models = on_local_engine(strategy, 6, 2, 5)
    assert strategy.clusters == clusters
    for mine, other in zip(strategy.models, models, strict=True):
        np.testing.assert_allclose(flat(mine), other.numpy(), rtol=1e-3, atol=2e-5)
    if not isinstance(strategy, FedCUAU):
        assert sorted(groups_of(strategy, 2)) == [[0], [1]]
    assert 0 < result.evaluate_metrics_clientapp[5]["eval_acc"] < 1
    assert all(record.faults == [] for record in strategy.history)


def test_a_share_of_the_nodes_trains_and_evaluates() -> None:
    asked: list[tuple[str, int, int]] = []

    def tamper(reply: Message) -> Message:
        meta = reply.metadata
        asked.append((meta.message_type, int(meta.group_id.partition(".")[0]), meta.src_node_id))
        return reply

    strategy = FedSEM(fraction_train=0.5, fraction_evaluate=0.25, min_evaluate_nodes=1, clusters=2)
    started(strategy, grid_of(8, 2, epochs=1, tamper=tamper), 4)
    per_round = {(kind, t): {n for k, r, n in asked if (k, r) == (kind, t)} for kind, t, _ in asked}
    assert {kind_round[0]: len(nodes) for kind_round, nodes in per_round.items()} == {"train": 4, "evaluate": 2}
    assert len({frozenset(nodes) for (kind, _), nodes in per_round.items() if kind == "train"}) > 1
    assert len(asked) == 4 * (4 + 2)


@pytest.mark.long
def test_cfl_splits_with_partial_participation_once_every_node_has_trained() -> None:
    asked: list[str] = []
    strategy = CFL(
        fraction_train=0.6, rule="paper(eps1=100,eps2=1e-9,gamma_max=0.6,wait=2,min_size=3)", fraction_evaluate=0
    )
    grid = grid_of(6, 2)
    grid.tamper = lambda reply: asked.append(reply.metadata.message_type) or reply  # type: ignore[func-returns-value]
    started(strategy, grid, 12)
    assert sorted(groups_of(strategy, 2)) == [[0], [1]]
    assert set(asked) == {"train"}


@pytest.mark.long
def test_cfl_places_nodes_that_join_and_lets_others_go() -> None:
    grid = grid_of(6, 2)

    def between_rounds(t: int, arrays: ArrayRecord) -> None:
        if t == 5:
            grid.leave(1001)
            grid.join({"partition-id": 1, "num-partitions": 6})  # 1007, of the other group than 1001
        if t == 6:
            grid.join({"partition-id": 0, "num-partitions": 6})  # 1008

    strategy = CFL(rule="paper(eps1=100,eps2=1e-9,gamma_max=0.6,wait=3,min_size=3)")
    started(strategy, grid, 8, evaluate_fn=between_rounds)
    assert sorted(sorted(members) for members in strategy.clusters) == [[1002, 1004, 1006, 1007], [1003, 1005, 1008]]
    events = [event.kind for record in strategy.history for event in record.events]
    assert events == ["split", "left", "joined", "joined"]


@pytest.mark.long
@pytest.mark.parametrize("strategy", [FedSEM(clusters=2), OneShot(warmup_rounds=2), FedCUAU(clusters=2)])
def test_every_strategy_goes_on_when_nodes_come_and_go(strategy: Clustered) -> None:
    grid = grid_of(5, 2, epochs=1)

    def between_rounds(t: int, arrays: ArrayRecord) -> None:
        if t in (1, 3):
            grid.leave(grid.get_node_ids()[0])
        if t in (1, 4):
            grid.join({"partition-id": t, "num-partitions": 6})

    started(strategy, grid, 6, evaluate_fn=between_rounds)
    assert sorted(node for members in strategy.clusters for node in members) == grid.get_node_ids()


@pytest.mark.long
def test_a_new_run_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    file, grid = tmp_path / "deep" / "checkpoint.safetensors", grid_of(6, 2, batch=ALL_AT_ONCE)
    options: dict[str, Any] = {"rule": "paper(eps1=100,eps2=1e-9,gamma_max=0.6,wait=3,min_size=3)"}
    whole = CFL(**options)
    started(whole, grid, 6)
    first = CFL(checkpoint=file, **options)
    started(first, grid, 4)
    second = CFL(checkpoint=file, **options)
    started(second, grid, 6)
    assert [record.round for record in second.history] == [1, 2, 3, 4, 5, 6]
    assert second.history[:4] == first.history  # as recorded, down to the seconds they took: only two rounds were done
    assert second.clusters == first.clusters == whole.clusters
    for one, other in zip(second.models, whole.models, strict=True):
        np.testing.assert_allclose(flat(one), flat(other), rtol=1e-3, atol=2e-5)
    with pytest.raises(RunError, match="of another method or model"):
        started(FedSEM(clusters=2, checkpoint=file), grid, 6)


def test_a_subclass_may_change_the_config_from_round_to_round() -> None:
    rates: list[tuple[int, float]] = []

    class Slower(FedSEM):
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            config["lr"] = LR / server_round
            return super().configure_train(server_round, arrays, config, grid)

    spy = grid_of(3, 1, epochs=1)
    answer = spy._answer
    spy._answer = lambda message: rates.append(tuple(message.content["config"].values())) or answer(message)  # type: ignore[method-assign,assignment,func-returns-value]
    started(Slower(clusters=1, fraction_evaluate=0), spy, 2)
    assert rates == [(LR, 1)] * 3 + [(LR / 2, 2)] * 3


def test_fedprox_underneath_reaches_the_app_as_flowers_own_fedprox_does() -> None:
    told: list[float] = []
    spy = grid_of(2, 1, epochs=1)
    answer = spy._answer
    spy._answer = lambda message: told.append(message.content["config"].get("proximal-mu")) or answer(message)  # type: ignore[method-assign,assignment,func-returns-value]
    started(FedCUAU(base="fedprox:mu=0.25", clusters=1, fraction_evaluate=0), spy, 1)
    assert told == [None, None, 0.25, 0.25]  # heterogeneity is measured by plain training


def test_a_fresh_model_has_the_same_numbers_elsewhere() -> None:
    engine = PlainEngine(grid_of(1, 1), arrays(), seed=7)
    first = engine.initial_model(derive(7, "model", 0))
    fresh, again, other = (engine.initial_model(derive(7, "model", i)) for i in (1, 1, 2))
    assert torch.equal(first, engine.template.vector(arrays()))
    assert torch.equal(fresh, again)
    assert not torch.equal(fresh, other)
    for entry in engine.layout.entries:
        place = slice(entry.start, entry.stop)
        assert not torch.equal(fresh[place], first[place])
        assert torch.equal(fresh[place].sort().values, first[place].sort().values)


def test_a_strategy_in_a_wrapper_says_so_instead_of_training_nothing() -> None:
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

    wrapped = DifferentialPrivacyServerSideFixedClipping(CFL(), 1.0, 1.0, 2)
    with pytest.raises(ConfigError, match="cannot be wrapped"):
        wrapped.start(grid_of(2, 1), arrays(), 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CFL(weigting=1), "did you mean 'weighting'"),
        (lambda: CFL(compare="gradient"), "sends updates"),
        (lambda: CFL(fraction_evaluate=0), "fraction_evaluate=0"),
        (lambda: FedSEM(fraction_train=0), "fraction_train=0"),
        (lambda: FedCUAU(base="fedbabu"), "freezes or keeps layers"),
        (lambda: CFL().clusters, "no clusters yet"),
        (lambda: started(OneShot(warmup_rounds=5), grid_of(3, 1), 5), "leave rounds for training"),
        (lambda: CFL().start(grid_of(3, 1), ArrayRecord()), "initial_arrays is empty"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_too_few_nodes_are_waited_for_and_then_told() -> None:
    with pytest.raises(RunError, match="1 nodes are connected, 2 are needed"):
        started(FedSEM(clusters=1), grid_of(1, 1), 1, timeout=0.05)


def test_several_models_are_evaluated_a_message_each_and_other_tasks_are_refused() -> None:
    engine = PlainEngine(grid_of(2, 1), arrays())
    engine.begin(1)
    models = torch.stack([engine.initial_model(seed) for seed in (1, 2)])
    ((replies, _),) = engine.run([Request(client, Evaluate(models)) for client in engine.clients])
    for i, reply in enumerate(replies):
        x, y = load_data(i, 2, ALL_AT_ONCE, 1)[1].dataset.tensors
        for model, loss, accuracy in zip(models, reply.values["loss"], reply.values["accuracy"], strict=True):
            net = Net()
            engine.layout.write(model, net)
            assert loss == pytest.approx(torch.nn.functional.cross_entropy(net(x), y).item(), rel=1e-4)
            assert accuracy == pytest.approx((net(x).argmax(1) == y).float().mean().item())
    with pytest.raises(ConfigError, match="Choose: not possible"):
        next(engine.run([Request("1001", Choose(models, None, 0))]))


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What is logged by Flower's logger, as level and text."""
    lines: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.levelname} {record.getMessage()}")

    keeper, logger = Keeper(), logging.getLogger("flwr")
    logger.addHandler(keeper)
    yield lines
    logger.removeHandler(keeper)


def test_the_example_runs_with_only_its_strategy_changed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, said: list[str]
) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"] | {"num-server-rounds": 2, "out": str(tmp_path / "out")}
    server_app(grid_of(4, 2), Context(1, 1, {}, RecordDict(), config))
    assert "4 nodes share a model: [1001, 1002, 1003, 1004]" in capsys.readouterr().out
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["cluster-0.pt", "clusters.json", "final_model.pt"]
    assert any(line.startswith("WARNING CFL cannot split within 2 rounds") for line in said)


def test_the_example_can_be_published() -> None:
    from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_description, _validate_files
    from flwr.cli.config_utils import load_and_validate
    from flwr.cli.utils import validate_project_name

    config, warnings = load_and_validate(EXAMPLE / "pyproject.toml", check_module=False)
    assert warnings == []
    assert config["tool"]["flwr"]["app"]["fab-format-version"] == 1
    validate_project_name(EXAMPLE.name, "the folder")
    validate_project_name(config["project"]["name"], "the app")
    _validate_description(config["project"]["description"])
    assert len(config["project"]["description"]) <= 200
    files = [path for path in _collect_file_paths(EXAMPLE) if "__pycache__" not in path.parts]
    _validate_files(files)
    assert {path.name for path in files} >= {"LICENSE", "README.md", "pyproject.toml", "server_app.py", "client_app.py"}


@pytest.mark.long
def test_the_quick_start_as_it_is_says_that_it_cannot_split(said: list[str]) -> None:
    """Flower's template has 3 rounds, a simulation 2 nodes, and it evaluates centrally too."""
    strategy = CFL(fraction_evaluate=0.5)
    seen: list[int] = []

    def evaluate_here(server_round: int, given: ArrayRecord) -> MetricRecord:
        seen.append(server_round)
        Net().load_state_dict(given.to_torch_state_dict())
        return MetricRecord({"accuracy": 0.5, "accuracy_class_0": 0.25})

    result = started(strategy, grid_of(2, 2), 3, evaluate_fn=evaluate_here)
    told = [line for line in said if line.startswith("WARNING CFL cannot split")]
    assert len(told) == 2
    assert "within 3 rounds: it first looks after round 4" in told[0]
    assert "2 nodes that only train and evaluate: it needs 3 or more" in told[1]
    assert seen == [0, 1, 2, 3]
    assert result.evaluate_metrics_serverapp[3]["accuracy_class_0"] == 0.25
    (event,) = strategy.history[-1].events
    assert event.text.startswith("no split: CFL cannot split within 3 rounds")


@pytest.mark.long
def test_every_clusters_model_is_saved_with_who_it_serves(tmp_path: Path, said: list[str]) -> None:
    strategy = OneShot(k=2, warmup_rounds=1, save_to=tmp_path / "models")
    result = started(strategy, grid_of(5, 2), 2)
    index = json.loads((tmp_path / "models" / "clusters.json").read_text())
    assert sorted(node for model in index["models"] for node in model["nodes"]) == [1001, 1002, 1003, 1004, 1005]
    assert len(index["models"]) == 2
    for model in index["models"]:
        state = torch.load(tmp_path / "models" / model["file"], weights_only=True)
        Net().load_state_dict(state)
        for node in model["nodes"]:
            given = strategy.model_of(node).to_torch_state_dict()
            assert all(torch.equal(state[name], given[name]) for name in given)
        if model["id"] == index["final_model"]:
            assert len(model["nodes"]) == 3
            final = result.arrays.to_torch_state_dict()
            assert all(torch.equal(state[name], final[name]) for name in final)
    assert any("the model of the largest cluster alone" in line for line in said)
    whole = FedSEM(clusters=1)
    started(whole, grid_of(2, 1), 1)
    assert [path.name for path in whole.save(tmp_path / "one")] == ["cluster-0.pt", "clusters.json"]
