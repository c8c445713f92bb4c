"""The grid without a network behaves as a network would, as far as an app can tell."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from coterie.errors import ConfigError
from coterie.flower.inprocess import InProcessGrid

app = ClientApp()


@app.query("count")
def count(message: Message, context: Context) -> Message:
    """How often this node was asked; a bad guest that writes into what it was sent."""
    before = context.state["seen"]["times"] if "seen" in context.state else 0
    context.state["seen"] = MetricRecord({"times": before + 1})
    message.content["config"]["word"] = "changed"
    told = ConfigRecord({"partition": context.node_config["partition-id"], "lr": context.run_config.get("lr", 0.0)})
    return Message(RecordDict({"seen": context.state["seen"], "told": told}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    raise ValueError(f"node {context.node_id} does not train")


def asked(
    grid: InProcessGrid, kind: str = "query.count", nodes: list[int] | None = None, ttl: float = 60
) -> list[Message]:
    content = RecordDict({"config": ConfigRecord({"word": "sent"}), "arrays": ArrayRecord([np.arange(3.0)])})
    return [Message(content, node, kind, ttl=ttl) for node in nodes or grid.get_node_ids()]


def test_every_node_keeps_its_own_state_and_answers_in_the_order_asked() -> None:
    grid = InProcessGrid(app, nodes=3, run_config={"lr": 0.5})
    for times in (1, 2):
        replies = grid.send_and_receive(asked(grid))
        assert [r.content["seen"]["times"] for r in replies] == [times] * 3
        assert [r.content["told"]["partition"] for r in replies] == [0, 1, 2]
        assert [r.metadata.src_node_id for r in replies] == grid.get_node_ids()
        assert replies[0].content["told"]["lr"] == 0.5
    grid.send_and_receive(asked(grid, nodes=grid.get_node_ids()[:1]))
    assert [context.state["seen"]["times"] for context in grid.contexts.values()] == [3, 2, 2]


def test_a_node_cannot_write_into_what_the_server_or_another_node_holds() -> None:
    grid = InProcessGrid(app, nodes=2)
    messages = asked(grid)
    replies = grid.send_and_receive(messages)
    assert messages[0].content["config"]["word"] == "sent"
    replies[0].content["seen"]["times"] = 99
    assert grid.contexts[grid.get_node_ids()[0]].state["seen"]["times"] == 1


def test_what_a_client_raises_and_an_unknown_node_are_error_replies() -> None:
    grid = InProcessGrid(app, nodes=1)
    node = grid.get_node_ids()[0]
    raised, unknown, unnamed = grid.send_and_receive(
        [*asked(grid, "train"), *asked(grid, nodes=[5]), *asked(grid, "query.nothing")]
    )
    assert (raised.error.code, raised.metadata.src_node_id) == (2, node)
    assert raised.error.reason == f"ValueError: node {node} does not train"
    assert (unknown.error.code, unknown.metadata.src_node_id) == (3, 1)
    assert unnamed.error.code == 2


def test_nodes_come_and_go() -> None:
    grid = InProcessGrid(app, node_configs=[{"partition-id": 7}])
    first = grid.get_node_ids()[0]
    second = grid.join({"partition-id": 8})
    assert grid.get_node_ids() == [first, second]
    assert [node.node_id for node in grid.get_nodes()] == [first, second]
    grid.leave(first)
    gone, here = grid.send_and_receive(asked(grid, nodes=[first, second]))
    assert gone.has_error()
    assert here.content["told"]["partition"] == 8
    with pytest.raises(ConfigError, match=f"no node {first}"):
        grid.leave(first)
    assert grid.join({"partition-id": 7}) not in (first, second)


def test_a_hook_may_change_a_reply_or_lose_it() -> None:
    def tamper(reply: Message) -> Message | None:
        if reply.metadata.src_node_id == grid.get_node_ids()[0]:
            return None
        reply.content["seen"]["times"] = -1
        return reply

    grid = InProcessGrid(app, nodes=2, tamper=tamper)
    replies = grid.send_and_receive(asked(grid), timeout=0.1)
    assert [reply.content["seen"]["times"] for reply in replies] == [-1]
    lost, changed = sorted(grid.send_and_receive(asked(grid, ttl=0.05)), key=lambda reply: reply.has_content())
    assert (lost.error.code, lost.metadata.src_node_id) == (3, 1)
    assert changed.content["seen"]["times"] == -1


def test_a_reply_is_given_once_and_only_to_who_asks_for_it() -> None:
    grid = InProcessGrid(app, nodes=2)
    first, second = grid.push_messages(asked(grid))
    assert [r.metadata.reply_to_message_id for r in grid.pull_messages([second])] == [second]
    assert grid.pull_messages([second]) == []
    assert len(grid.pull_messages([first, second])) == 1


@pytest.mark.parametrize("given", [{}, {"nodes": 3, "node_configs": [{}]}])
def test_a_grid_needs_to_know_its_nodes(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="nodes"):
        InProcessGrid(app, **given)  # type: ignore[arg-type]
