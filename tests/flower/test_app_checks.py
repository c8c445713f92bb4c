"""CFL's checks on nodes that run an app of their own: the quick-start app with `answer_checks` in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dropin_trials import ALL_AT_ONCE, LR, Net, arrays, client_app, flat, groups_of, load_data, started, task
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from coterie.benefit import FIRST_LOOK
from coterie.engines import LocalEngine
from coterie.errors import DataError
from coterie.federation import Client, Federation, Split
from coterie.flower import CFL, InProcessGrid, answer_checks
from coterie.flower.app_checks import split_of
from coterie.flower.plain import PlainEngine
from coterie.flower.strategy_base import LOG
from coterie.methods import Server
from coterie.methods.cfl import CFL as CFLMethod
from coterie.methods.splitting import EvaluatedRule
from coterie.tasks import HalfUpdates, HeldOut, Task
from coterie.tasks.base import Request
from coterie.tasks.wire import task_bytes
from coterie.trainers.base import Training
from coterie.trainers.schedules import make_schedule

HOW = Training(lr=LR, epochs=2, batch_size=None, momentum=0.9)


def training_data(context: Context) -> DataLoader[Any]:
    node, config = context.node_config, context.run_config
    return load_data(node["partition-id"], node["num-partitions"], config["batch-size"], config["groups"])[0]


def fit(net: nn.Module, data: TensorDataset, config: ConfigRecord, context: Context) -> None:
    loader = DataLoader(data, context.run_config["batch-size"], shuffle=True)
    task.train(net, loader, context.run_config["local-epochs"], config["lr"])


def plain_app() -> ClientApp:
    app = ClientApp()
    app.train()(client_app.train)
    app.evaluate()(client_app.evaluate)
    return app


def checking_app(model: Callable[[], nn.Module] = Net, **more: Any) -> ClientApp:
    app = plain_app()
    answer_checks(app, model, training_data, more.get("fit", fit))
    return app


def grid_of(app: ClientApp, nodes: int, groups: int, **more: Any) -> InProcessGrid:
    config = {"batch-size": ALL_AT_ONCE, "local-epochs": 2, "groups": groups}
    return InProcessGrid(app, nodes, run_config=config, **more)


class SameStart(LocalEngine):
    """A local engine that begins with the app's arrays."""

    def initial_model(self, seed: int) -> Tensor:
        return torch.from_numpy(flat(arrays()))


def local_engine(nodes: int, groups: int) -> LocalEngine:
    """The app's nodes, data and model without Flower."""
    clients = []
    for i in range(nodes):
        train, test = (Split(*loader.dataset.tensors) for loader in load_data(i, nodes, ALL_AT_ONCE, groups))
        clients.append(Client(str(1001 + i), train, test, test))
    return SameStart(Federation(clients, 10), lambda seed: Net())


def test_an_app_answers_as_a_client_of_our_own_does() -> None:
    model, step = torch.from_numpy(flat(arrays())), torch.randn(4, 2410, generator=torch.Generator().manual_seed(1))
    engine, local = PlainEngine(grid_of(checking_app(), 2, 1), arrays()), local_engine(2, 1)
    engine.begin(1)
    engine.train_config = ConfigRecord({"lr": LR})
    assert engine.look_for_checks() == {}
    assert engine.capabilities.halves
    tasks: list[Task] = [HalfUpdates(model, HOW, 3, 5), HeldOut((model + 0.1 * step).reshape(2, 2, -1), 5)]
    for each in tasks:
        engine.traffic.drain()
        requests = [Request(client, each) for client in engine.clients]
        mine, theirs = ([r for block in e.run(requests) for r in block.replies] for e in (engine, local))
        assert engine.traffic.down == 2 * task_bytes(each, engine.layout)
        for one, other in zip(mine, theirs, strict=True):
            assert one.client == other.client
            if one.vector is None:
                np.testing.assert_allclose(one.values["loss"], other.values["loss"], rtol=1e-3, atol=2e-5)
            else:
                np.testing.assert_allclose(one.vector, other.vector, rtol=1e-3, atol=2e-5)  # type: ignore[arg-type]
            for name in one.values.keys() - {"loss"}:
                np.testing.assert_allclose(one.values[name], other.values[name], rtol=1e-3, atol=2e-5)


@pytest.fixture(scope="module")
def smooth() -> Iterator[None]:
    """The app's network without kinks: where an input is near one, a last bit decides which way the training goes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Net, "forward", lambda net, x: net.fc2(torch.tanh(net.fc1(x))))
        yield


@pytest.fixture(scope="module")
def half_participation(smooth: None) -> CFL:
    """A finished run of eleven rounds in which half of the nodes take part."""
    strategy = CFL(fraction_train=0.5)
    started(strategy, grid_of(checking_app(), 6, 2), 11)
    return strategy


def test_the_strategy_decides_as_the_method_does_elsewhere(half_participation: CFL) -> None:
    rounds, strategy = 11, half_participation
    engine = local_engine(6, 2)
    server = Server(engine, make_schedule("constant", HOW, rounds), strategy.seed, rounds, 0.5)
    method = CFLMethod(fallback=False)
    state = method.start(server)
    events = []
    for t in range(1, rounds + 1):
        state, info = method.round(state, t, server)
        events += [(t, event.kind) for event in info.events]
    assert [(r.round, event.kind) for r in strategy.history for event in r.events] == events
    assert [kind for _, kind in events] == ["split"]
    assert sorted(groups_of(strategy, 2)) == [[0], [1]]
    assignment = method.assignment(state, server)
    assert strategy.clusters == [[int(client) for client in members] for members in assignment.members]
    for mine, other in zip(strategy.models, assignment.models, strict=True):
        np.testing.assert_allclose(flat(mine), other.numpy(), rtol=1e-3, atol=2e-5)


def test_nodes_of_one_kind_stay_together() -> None:
    strategy = CFL()
    started(strategy, grid_of(checking_app(), 6, 1), 6)
    assert len(strategy.clusters) == 1
    assert strategy.state.memory[0].count > 0  # they were looked at


def test_a_run_resumes_just_before_a_split(half_participation: CFL, tmp_path: Path) -> None:
    file, grid = tmp_path / "checkpoint.safetensors", grid_of(checking_app(), 6, 2)
    whole = half_participation
    [split] = [record.round for record in whole.history for event in record.events if event.kind == "split"]

    def stop(t: int, arrays: ArrayRecord) -> None:
        if t == split - 1:
            raise KeyboardInterrupt

    first = CFL(fraction_train=0.5, checkpoint=file)
    with pytest.raises(KeyboardInterrupt):
        started(first, grid, 11, evaluate_fn=stop)
    assert split >= FIRST_LOOK
    assert file.exists()
    second = CFL(fraction_train=0.5, checkpoint=file)
    started(second, grid, 11)
    assert [record.round for record in second.history for event in record.events if event.kind == "split"] == [split]
    assert second.clusters == whole.clusters
    for one, other in zip(second.models, whole.models, strict=True):
        np.testing.assert_allclose(flat(one), flat(other), rtol=1e-3, atol=2e-5)


class Wider(Net):
    def __init__(self) -> None:
        super().__init__()
        self.fc3 = nn.Linear(2, 2)


def half_of(reply: Message) -> Message | None:
    """Nodes with an even id do not know checks."""
    query = reply.metadata.message_type.startswith("query")
    if query and reply.metadata.src_node_id % 2 == 0:
        del reply.content["values"]
    return reply


@pytest.mark.parametrize(
    ("app", "tamper", "words"),
    [
        (plain_app, None, "4 of 4 nodes do not answer CFL's checks (node 1001: its app has no answer_checks;"),
        (lambda: checking_app(Wider), None, "is not the one whose arrays the strategy got"),
        (checking_app, half_of, "2 of 4 nodes do not answer CFL's checks (node 1002: it sent records"),
    ],
    ids=["no checks", "another model", "some"],
)
def test_without_checks_the_rule_on_flat_losses_decides_and_one_warning_says_so(
    app: Callable[[], ClientApp], tamper: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def spy(reply: Message) -> Message | None:
        asked.append(reply.metadata.message_type)
        return reply if tamper is None or reply.has_error() else tamper(reply)

    warnings: list[str] = []
    monkeypatch.setattr(LOG, "warning", lambda text, *values: warnings.append(text % values))
    strategy = CFL()
    started(strategy, grid_of(app(), 4, 2, tamper=spy), 3)
    [told] = [text for text in warnings if "CFL's checks" in text]
    assert words in told
    assert "answer_checks(app, model, data, fit)" in told
    assert asked.count("query.coterie_check") == 4
    assert strategy._server is not None
    assert isinstance(strategy.method.split_rule(strategy._server), EvaluatedRule)


def test_the_paper_rule_asks_for_no_checks() -> None:
    asked: list[str] = []
    grid = grid_of(checking_app(), 4, 2, tamper=lambda reply: asked.append(reply.metadata.message_type) or reply)  # type: ignore[func-returns-value]
    started(CFL(rule="paper(eps1=100,eps2=1e-9,gamma_max=0.5,wait=2)"), grid, 2)
    assert set(asked) == {"train", "evaluate"}


def test_a_node_that_fails_in_a_check_is_named_and_left_out() -> None:
    def failing(net: nn.Module, data: TensorDataset, config: ConfigRecord, context: Context) -> None:
        if context.node_id == 1003:
            raise ValueError("out of disk")
        fit(net, data, config, context)

    strategy = CFL()
    started(strategy, grid_of(checking_app(fit=failing), 6, 2), 6)
    faults = {(fault.client, fault.reason) for record in strategy.history for fault in record.faults}
    assert {client for client, _ in faults} == {"1003"}
    assert any("the training function of answer_checks raised ValueError: out of disk" in why for _, why in faults)
    assert len(strategy.clusters) == 2


def test_a_check_leaves_the_random_numbers_of_the_app_alone() -> None:
    engine = PlainEngine(grid_of(checking_app(), 1, 1), arrays())
    engine.begin(1)
    engine.train_config = ConfigRecord({"lr": LR})
    request = Request("1001", HalfUpdates(torch.from_numpy(flat(arrays())), HOW, 3, 5))
    torch.manual_seed(4)
    before = torch.get_rng_state()
    assert [len(block.replies) for block in engine.run([request])] == [1]
    assert torch.equal(torch.get_rng_state(), before)


class Squares(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.tensor([float(i)]), i * i


@pytest.mark.parametrize("wrap", [lambda d: d, DataLoader, lambda d: (split_of(d).x, split_of(d).y)])
def test_data_comes_as_a_pair_a_dataset_or_a_loader(wrap: Callable[[Any], Any]) -> None:
    found = split_of(wrap(Squares()))
    assert found.x.tolist() == [[0.0], [1.0], [2.0]]
    assert found.y.tolist() == [0, 1, 4]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"img": [1]}, "gives a dict"),
        ((torch.zeros(2, 1), torch.zeros(3)), "2 inputs and 3 targets"),
        (TensorDataset(torch.zeros(0, 1), torch.zeros(0)), "0 inputs"),
        (TensorDataset(torch.zeros(2, 1)), "expected a pair"),
    ],
)
def test_other_data_is_refused_in_a_line(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split_of(given)
