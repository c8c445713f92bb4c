"""Whose id is whose on a network: takeovers, invented ids and false descriptions are refused with a reason."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flower_trials import MODEL, QUICK, TRAINING, digits, grid_of
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from coterie.errors import ConfigError, RunError
from coterie.federation import Federation
from coterie.flower import InProcessGrid, client_app
from coterie.flower.directory import Directory, Expected, second_most
from coterie.flower.exchange import Exchange
from coterie.flower.reports import Keys, metrics_of
from coterie.flower.server import NetworkConfig, read_keys, run_on
from coterie.tasks.wire import BadReply


@dataclass
class Node:
    node_id: int
    public_key: bytes | None


class KeyedGrid(InProcessGrid):
    """A grid whose nodes have keys: by default the one that their number makes, as registered nodes have."""

    keys: dict[int, bytes | None] = {}  # noqa: RUF012

    def get_nodes(self) -> list[Any]:
        return [Node(node, self.keys.get(node, f"key {node}".encode())) for node in self.contexts]


@pytest.fixture(scope="module")
def federation() -> Federation:
    return digits(6)


def keyed(federation: Federation, ids: list[str]) -> KeyedGrid:
    return KeyedGrid(client_app(MODEL, federation), node_configs=[{"client": client} for client in ids])


def directory_on(grid: InProcessGrid, count: int, expected: Expected | None = None, **options: Any) -> Directory:
    expected = (expected or Expected())._replace(keyed=isinstance(grid, KeyedGrid))
    directory = Directory(Exchange(grid, 0.25, 0.02), expected, **options)
    directory.wait_for(count, 2.0)
    return directory


def reasons(directory: Directory) -> str:
    return "; ".join(f"{fault.client}: {fault.reason}" for fault in directory.faults())


def test_a_node_that_claims_a_silent_clients_id_does_not_get_it(federation: Federation) -> None:
    grid = keyed(federation, ["client-0", "client-1", "client-2"])
    directory = directory_on(grid, 3)
    directory.silence("client-1")
    thief = grid.join({"client": "client-1"})
    directory.refresh()
    assert directory.node_of("client-1") == 1002
    assert f"node {thief}: client 'client-1' belongs to another key" in reasons(directory)


def test_a_key_keeps_its_id_while_its_node_is_away(federation: Federation) -> None:
    grid = keyed(federation, ["client-0", "client-1", "client-2"])
    directory = directory_on(grid, 3)
    context = grid.contexts[1002]
    grid.leave(1002)
    grid.join({"client": "client-1"})
    directory.refresh()
    assert directory.clients == ("client-0", "client-2")
    grid.contexts[1002] = context  # the true one returns, with its key
    directory.refresh()
    assert directory.node_of("client-1") == 1002


def test_the_first_key_of_a_client_outlives_the_run(federation: Federation) -> None:
    grid = keyed(federation, ["client-0", "client-1"])
    bound = directory_on(grid, 2).bound
    later = keyed(federation, ["client-3", "client-4", "client-0", "client-5"])
    later.leave(1001)
    later.leave(1002)
    directory = directory_on(later, 1, bound=bound)
    assert directory.clients == ("client-5",)
    assert "client 'client-0' belongs to another key" in reasons(directory)


def test_without_keys_an_id_is_free_when_the_grid_has_lost_its_node(federation: Federation) -> None:
    grid = grid_of(federation, ["client-0", "client-1"])
    directory = directory_on(grid, 2)
    directory.silence("client-1")
    second = grid.join({"client": "client-1"})
    directory.refresh()
    assert "already here" in reasons(directory)
    grid.leave(1002)
    directory.refresh()
    assert directory.node_of("client-1") == second


def test_keys_that_flower_makes_up_at_every_start_do_not_bind_an_id(federation: Federation) -> None:
    grid = keyed(federation, ["client-0", "client-1"])
    directory = Directory(Exchange(grid, 0.25, 0.02))  # nodes without keys of their own
    directory.wait_for(2, 2.0)
    grid.leave(1002)
    second = grid.join({"client": "client-1"})
    directory.refresh()
    assert directory.node_of("client-1") == second


def test_one_node_is_one_client(federation: Federation) -> None:
    grid = keyed(federation, ["client-0", "client-1"])
    directory = directory_on(grid, 2)
    for invented in ("client-3", "client-4", "client-5"):
        grid.contexts[1002].node_config["client"] = invented
        directory.silence("client-1") if "client-1" in directory.clients else None
        directory.refresh()
    assert directory.clients == ("client-0",)
    assert "one node may be 1" in reasons(directory)


def test_unless_the_operator_allows_it_to_be_several(federation: Federation) -> None:
    grid = keyed(federation, ["client-0", "client-1"])
    directory = directory_on(grid, 2, Expected(ids_per_node=2))
    grid.contexts[1002].node_config["client"] = "client-3"
    directory.silence("client-1")
    directory.refresh()
    assert directory.clients == ("client-0", "client-3")


def test_clients_that_would_be_refused_are_not_waited_for(federation: Federation) -> None:
    grid = keyed(federation, ["client-9", "client-0", "client-1"])
    directory = Directory(Exchange(grid, 0.25, 0.02), Expected(keys={"client-0": b"key 1002".hex()}))
    with pytest.raises(RunError, match="1 clients came within 0"):
        directory.wait_for(2, 0.1)


def test_an_operators_list_admits_its_clients_with_their_keys_only(federation: Federation) -> None:
    grid = keyed(federation, ["client-0", "client-1", "client-2"])
    listed = {"client-0": b"key 1001".hex(), "client-1": b"another".hex()}
    directory = directory_on(grid, 1, Expected(keys=listed))
    assert directory.clients == ("client-0",)
    told = reasons(directory)
    assert "client 'client-1' belongs to another key" in told
    assert "client 'client-2' is not on the operator's list" in told


def describing(changes: dict[int, dict[str, Any]]) -> Any:
    """A hook under which some nodes describe themselves otherwise."""

    def tamper(message: Any) -> Any:
        node = message.metadata.src_node_id
        if message.metadata.message_type == "query.describe" and node in changes:
            record = dict(message.content["client"]) | changes[node]
            message.content["client"] = ConfigRecord(record)
        return message

    return tamper


def test_no_client_alone_decides_how_many_classes_there_are(federation: Federation) -> None:
    grid = grid_of(federation, tamper=describing({1003: {"classes": 2**20}}))
    directory = directory_on(grid, 5)
    assert directory.classes == 10
    assert directory.clients == tuple(c for c in federation.ids if c != "client-2")
    assert "1048576 classes" in reasons(directory)
    assert second_most([3]) == 3
    assert second_most([10, 4, 10, 7]) == 10


@pytest.mark.parametrize(
    ("expected", "change", "words"),
    [
        (Expected(most_samples=1000), {"train": 1001}, "claims 1001 samples"),
        (Expected(classes=4), {"classes": 5}, "5 classes"),
        (Expected(classes=4), {"classes": 4, "train": 2**41}, "expected a whole number"),
    ],
)
def test_descriptions_are_held_against_what_the_operator_expects(
    federation: Federation, expected: Expected, change: dict[str, Any], words: str
) -> None:
    fine = {"classes": 4}
    told = {1001 + i: fine for i in range(6)} | {1002: fine | change}
    directory = directory_on(grid_of(federation, tamper=describing(told)), 5, expected)
    assert directory.clients == tuple(c for c in federation.ids if c != "client-1")
    assert words in reasons(directory)


def test_inputs_of_another_shape_than_the_operators_are_refused(federation: Federation) -> None:
    with pytest.raises(RunError, match=r"0 clients came within 0.1 s.*expected \(1, 28, 28\)"):
        Directory(Exchange(grid_of(federation), 0.25, 0.02), Expected(shape=(1, 28, 28))).wait_for(6, 0.1)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"num-examples": 1e308, "loss": 1.0}, "at most"),
        ({"num-examples": 10, "accuracy": 1e9}, "'accuracy' is 1e\\+09"),
        ({"num-examples": 10, "eval_acc": -0.5}, "'eval_acc' is -0.5"),
    ],
)
def test_metrics_of_an_app_that_cannot_be_are_faults(metrics: dict[str, float], words: str) -> None:
    with pytest.raises(BadReply, match=words):
        metrics_of(RecordDict({"metrics": MetricRecord(metrics)}), Keys())
    assert metrics_of(RecordDict({"metrics": MetricRecord({"num-examples": 10, "accuracy": 93.5})}), Keys())


def test_a_run_keeps_whose_key_is_whose_and_a_resumed_one_holds_on_to_it(
    federation: Federation, tmp_path: Path
) -> None:
    grid = keyed(federation, list(federation.ids))
    options = TRAINING | QUICK | {"method": "fedavg", "rounds": 1, "min_nodes": 6, "node_keys": True}
    run_on(grid, options, tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "flower.json").read_text())
    assert kept["keys"] == {client: f"key {1001 + i}".encode().hex() for i, client in enumerate(federation.ids)}
    assert kept["classes"] == 10


def test_the_operators_options_are_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"a": "00ff"}')
    config = NetworkConfig(input_shape="1,28,28", client_keys=str(path), most_samples=5, node_keys=True)
    assert config.expected(7) == Expected(7, (1, 28, 28), 5, {"a": "00ff"}, True)
    with pytest.raises(ConfigError, match="input_shape"):
        NetworkConfig(input_shape="wide").expected()
    path.write_text('{"a": "no key"}')
    with pytest.raises(ConfigError, match="'no key' is no public key"):
        read_keys(path)
    path.write_text('["a"]')
    with pytest.raises(ConfigError, match="expected a table"):
        read_keys(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none.json")
