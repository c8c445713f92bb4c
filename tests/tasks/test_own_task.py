"""A task that no package of ours knows: it works on every engine, and a bad reply to it is refused in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr", reason="needs coterie[flower]")

from flwr.app import ArrayRecord, Message, MetricRecord

from coterie.engines import LocalEngine
from coterie.engines.base import Engine
from coterie.errors import ConfigError, RunError
from coterie.federation import Client, Federation, Split
from coterie.flower import FlowerEngine, InProcessGrid, client_app
from coterie.flower.wire import pack_array
from coterie.parameters import Layout
from coterie.tasks import Array, ClientContext, Number, Reduction, Reply, ReplySchema, Request, Task
from coterie.tasks.wire import find_task, reply_bytes, task_bytes
from coterie.trainers.base import Trainer

CLIENTS, FEATURES, LABELS = 12, 4, 3


@dataclass(frozen=True)
class LabelMeans(Task):
    """Send the mean of each label's inputs, times `scale: (inputs,)`, and how many of the labels there are."""

    scale: Tensor
    power: float = 1.0

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(
            values={
                "means": Array((LABELS, FEATURES), minimum=-100, maximum=100),
                "labels": Number(minimum=1, maximum=LABELS, integer=True),
            }
        )

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        data = context.client.train
        means = torch.zeros(LABELS, FEATURES)
        for label in data.y.unique().tolist():
            means[label] = self.scale * data.x[data.y == label].mean(0) ** self.power
        return Reply(context.client.id, len(data), values={"means": means, "labels": len(data.y.unique())})


@dataclass(frozen=True)
class Pull(Task):
    """Send the way from the client's last `target` to this one, and keep this one: a task with a vector and a state."""

    target: Tensor

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(layout.size)

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        before = context.state.get("target", torch.zeros_like(self.target))
        context.state["target"] = self.target.clone()
        return Reply(context.client.id, len(context.client.train), self.target - before)


@dataclass(frozen=True)
class Idle(Task):
    """A task that was never finished."""

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema()


def federation() -> Federation:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for i in range(CLIENTS):
        n = 5 + i
        train = Split(torch.randn(n, FEATURES, generator=generator), torch.randint(LABELS, (n,), generator=generator))
        clients.append(Client(f"client-{i}", train, train, train))
    return Federation(clients, LABELS)


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(FEATURES, LABELS)


def on_grid(tamper: Callable[[Message], Message | None] | None = None) -> FlowerEngine:
    data = federation()
    app = client_app(network(0), data)
    grid = InProcessGrid(app, node_configs=[{"client": client} for client in data.ids], tamper=tamper)
    return FlowerEngine(grid, network, timeout=0.5, poll=0.01)


@pytest.fixture
def engines() -> Iterator[dict[str, Engine]]:
    made: dict[str, Engine] = {
        "here": LocalEngine(federation(), network),
        "workers": LocalEngine(federation(), network, workers=2),
        "grid": on_grid(),
    }
    yield made
    for engine in made.values():
        engine.close()


def replies_of(engine: Engine, task: Task) -> list[Reply]:
    return [reply for block in engine.run([Request(c, task) for c in engine.clients]) for reply in block.replies]


TASK = LabelMeans(torch.tensor([1.0, -2.0, 0.5, 3.0]), 2.0)


def test_a_task_of_ones_own_gives_the_same_replies_on_every_engine(engines: dict[str, Engine]) -> None:
    assert find_task(TASK.kind()) is LabelMeans
    found = {name: replies_of(engine, TASK) for name, engine in engines.items()}
    data = federation()
    for name, replies in found.items():
        assert [reply.client for reply in replies] == list(data.ids), name
        for reply, expected in zip(replies, found["here"], strict=True):
            assert reply.samples == len(data[reply.client].train)
            assert reply.values.keys() == {"means", "labels"}
            assert reply.values["means"].shape == (LABELS, FEATURES)
            assert torch.equal(reply.values["means"], expected.values["means"])
            assert reply.values["labels"] == expected.values["labels"]
    first = data.clients[0].train
    label = int(first.y[0])
    by_hand = torch.tensor([1.0, -2.0, 0.5, 3.0]) * first.x[first.y == label].mean(0) ** 2
    assert torch.allclose(found["here"][0].values["means"][label], by_hand)
    workers = engines["workers"]
    assert isinstance(workers, LocalEngine)
    assert workers._pool is not None


def test_its_bytes_are_counted_alike_on_every_engine(engines: dict[str, Engine]) -> None:
    down, up = 4 * FEATURES, 4 * LABELS * FEATURES + 8
    for engine in engines.values():
        replies = replies_of(engine, TASK)
        assert engine.traffic.drain() == (CLIENTS * down, CLIENTS * up)
        assert task_bytes(TASK, engine.layout) == down
        assert {reply_bytes(reply, TASK.schema(engine.layout)) for reply in replies} == {up}


def test_its_vectors_are_added_up_and_its_states_kept_on_every_engine(engines: dict[str, Engine]) -> None:
    targets = [torch.arange(15.0) + i for i in range(2)]
    weights, groups = [float(i) for i in range(CLIENTS)], [i % 3 for i in range(CLIENTS)]
    for engine in engines.values():
        for target, way in zip(targets, (targets[0], torch.ones(15)), strict=True):
            requests = [Request(c, Pull(target)) for c in engine.clients]
            sums = {group: torch.zeros(15, dtype=torch.float64) for group in range(3)}
            for block in engine.run(requests, Reduction(weights, groups)):
                assert all(reply.vector is None for reply in block.replies)
                assert all(reply.norm == pytest.approx(float(way.norm())) for reply in block.replies)
                for group, total in block.sums.items():
                    sums[group] += total
            for group, total in sums.items():
                weight = sum(w for w, g in zip(weights, groups, strict=True) if g == group)
                assert torch.allclose(total, weight * way.double())


def test_a_task_without_an_answer_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Idle defines neither answer nor answers"):
        replies_of(LocalEngine(federation(), network), Idle())


def with_means(values: Tensor) -> Callable[[Message], None]:
    def change(message: Message) -> None:
        message.content["arrays"] = ArrayRecord({"means": pack_array(values)})

    return change


def with_labels(value: float) -> Callable[[Message], None]:
    def change(message: Message) -> None:
        message.content["values"] = MetricRecord({"labels": value})

    return change


def without_arrays(message: Message) -> None:
    del message.content["arrays"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_means(torch.ones(LABELS, FEATURES + 1)), "shape (3, 5), expected (3, 4)"),
        (with_means(torch.ones(LABELS * FEATURES)), "shape (12,), expected (3, 4)"),
        (with_means(torch.full((LABELS, FEATURES), math.nan)), "its means is not finite"),
        (with_means(torch.full((LABELS, FEATURES), 101.0)), "it sent means outside -100 to 100"),
        (with_labels(2.0), "it sent 2.0 as labels, expected a whole number"),
        (with_labels(0), "it sent 0 as labels, expected 1 to 3"),
        (without_arrays, "it sent records values, expected arrays, values"),
    ],
)
def test_an_unsound_reply_to_it_is_refused_with_a_reason(change: Callable[[Message], None], reason: str) -> None:
    def tamper(message: Message) -> Message:
        if message.metadata.message_type == "query.coterie" and message.metadata.src_node_id == 1003:
            change(message)
        return message

    engine, sound = on_grid(tamper), replies_of(on_grid(), TASK)
    replies = replies_of(engine, TASK)
    assert [reply.client for reply in replies] == [f"client-{i}" for i in range(CLIENTS) if i != 2]
    for reply, expected in zip(replies, [reply for reply in sound if reply.client != "client-2"], strict=True):
        assert torch.equal(reply.values["means"], expected.values["means"])
    (fault,) = engine.faults()
    assert fault.client == "client-2"
    assert reason in fault.reason
    assert engine.traffic.up == (CLIENTS - 1) * (4 * LABELS * FEATURES + 8)


def test_a_client_that_does_not_know_the_task_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = on_grid()
    monkeypatch.setattr(Task, "kinds", {name: kind for name, kind in Task.kinds.items() if kind is not LabelMeans})
    with pytest.raises(ConfigError, match="knows no task"):
        find_task(TASK.kind())
    with pytest.raises(RunError, match=r"this client knows no task '.*LabelMeans'"):
        replies_of(engine, TASK)
