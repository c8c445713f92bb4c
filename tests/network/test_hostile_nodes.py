"""Nodes with registered keys that lie, on a real SuperLink: each is refused with a reason, and the run is unharmed."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file
from trials import COMMON, Trial, history

from coterie.flower.certificates import make_certificates, make_node_key, public_key
from coterie.flower.deploy import write_deployment
from coterie.flower.local import HOST, Network
from coterie.runs.config import make_config

LYING_APP = """
import torch
from coterie.flower import client
from coterie.flower.wire import pack_array


class LyingHandler(client.ClientHandler):
    def describe(self, records, context):
        answer = super().describe(records, context)
        if context.node_config.get("lie") == "classes":
            answer["client"]["classes"] = 2**20
        return answer

    def coterie(self, records, context):
        answer = super().coterie(records, context)
        if context.node_config.get("lie") == "accuracy" and "accuracy" in answer.get("arrays", {}):
            answer["arrays"]["accuracy"] = pack_array(torch.tensor([1e9]))
        return answer


client.ClientHandler = LyingHandler
app = client.client_app()
"""
HONEST = ("client-0", "client-1")
ROUNDS = 3
"""A node that is slow to answer who it is does so while the others are in their first rounds."""
LIES = {
    "boaster": ("client-2", {"lie": "accuracy"}),
    "giant": ("client-3", {"lie": "classes"}),
    "thief": ("client-0", {}),
    "invented": ("client-9", {}),
}
"""The nodes that lie: the client that each claims to be, and how it lies."""


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Rounds, summary and model of a run among six nodes with registered keys, of which four lie."""
    root = tmp_path_factory.mktemp("hostile")
    certificates = make_certificates(root / "keys", ["localhost", HOST])
    keys = {name: make_node_key(root / "keys", name) for name in (*HONEST, *LIES)}
    holders = {name: name for name in HONEST} | {"client-2": "boaster", "client-3": "giant"}
    listed = {client: public_key(keys[name]).read_text() for client, name in holders.items()}
    (root / "clients.json").write_text(json.dumps(listed))
    config = make_config(COMMON | {"clients": 4, "method": "fedavg", "rounds": ROUNDS, "evaluate_every": ROUNDS})
    deployment = write_deployment(root / "app", config, nodes=3, secure=True)
    (deployment.app / "client_app.py").write_text(LYING_APP)
    project = deployment.app / "pyproject.toml"
    project.write_text(project.read_text() + f'client-keys = "{root / "clients.json"}"\n')
    data = {node["client"]: node for node in deployment.nodes}
    with Network(root / "flower", certificates) as network:
        trial = Trial(network, root, nodes=6)
        for key in keys.values():
            network.register(key)
        for name, (claimed, lie) in LIES.items():
            network.add_node(name, data.get(claimed, data["client-3"]) | {"client": claimed} | lie, keys[name])
        for name in HONEST:
            network.add_node(name, data[name], keys[name])
        summary = trial.finish(network.submit(deployment.app, {"timeout": 60.0}), deployment)
        yield history(deployment), summary, load_file(deployment.run / "models" / "cluster-0.safetensors")
    assert not network.processes()


def reasons(records):
    return [f"{fault.client}: {fault.reason}" for record in records[0] for fault in record.faults]


@pytest.mark.parametrize(
    "words",
    [
        "client 'client-0' belongs to another key",
        "client 'client-9' is not on the operator's list",
        "client 'client-3' has 1048576 classes",
        "client-2: it sent accuracy outside 0 to 1",
    ],
)
def test_a_lie_is_refused_with_a_reason(records, words):
    assert any(words in reason for reason in reasons(records)), reasons(records)


def test_the_run_is_unharmed(records):
    rounds, summary, model = records
    assert [record.round for record in rounds] == list(range(1, ROUNDS + 1))
    assert sorted(c for cluster in summary.clusters for c in cluster) == [*HONEST, "client-2"]
    assert not [fault for record in rounds for fault in record.faults if fault.client in HONEST]
    assert 0 <= summary.accuracy.min <= summary.accuracy.max <= 1
    assert max(len(tensor) for name, tensor in model.items() if name.endswith("bias")) == 16
