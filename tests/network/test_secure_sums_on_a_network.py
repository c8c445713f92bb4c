"""Secure sums on a real SuperLink: two of six nodes are killed after the shares were sent, and the sum still opens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from trials import COMMON, Trial, history

import coterie
from coterie.flower.deploy import write_deployment
from coterie.flower.local import Network
from coterie.privacy.keys import KEY_BYTES
from coterie.privacy.sealing import SIGNATURE_BYTES
from coterie.privacy.secure_sum import OFFERED_BYTES, SEALED_BYTES
from coterie.privacy.shamir import SHARE_BYTES
from coterie.privacy.whole_numbers import Quantiser
from coterie.runs.assemble import make_federation
from coterie.runs.config import make_config

WAITING_APP = '''
import time
from pathlib import Path
from coterie.flower import client


class WaitingHandler(client.ClientHandler):
    """A client that, asked for its masked update, says so in a file and waits to be killed."""

    def coterie(self, records, context):
        flag = context.node_config.get("flag")
        if flag and str(records["task"]["kind"]).endswith(".Masked"):
            Path(flag).touch()
            time.sleep(600)
        return super().coterie(records, context)


client.ClientHandler = WaitingHandler
app = client.client_app()
'''
LOST = ("client-4",)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run of one round among six nodes, one of which is killed in the exchange of vectors."""
    root: Path = tmp_path_factory.mktemp("secure-sums")
    config = make_config(COMMON | {"clients": 6, "method": "fedavg", "rounds": 1, "secure_sums": True})
    deployment = write_deployment(root / "app", config)
    (deployment.app / "client_app.py").write_text(WAITING_APP)
    flags = {client: root / f"{client}.asked" for client in LOST}
    with Network(root / "flower") as network:
        trial = Trial(network, root, nodes=6)
        for node in deployment.nodes:
            client = node["client"]
            flag = {"flag": str(flags[client])} if client in flags else {}
            network.add_node(client, node | flag)
        run = network.submit(deployment.app, {"timeout": 20.0})
        trial.wait_for(lambda: all(flag.exists() for flag in flags.values()) or run.poll() is not None)
        for client in LOST:
            network.nodes[client].process.kill()
        summary = trial.finish(run, deployment)
        yield deployment, history(deployment), summary
    assert not network.processes()


def test_the_sum_of_those_who_came_through_is_the_plain_one(killed):
    deployment, records, _ = killed
    assert {fault.client for fault in records[0].faults} == set(LOST)
    federation, _ = make_federation(make_config(COMMON | {"clients": 6}))
    rest = federation.subset([client for client in federation.ids if client not in LOST])
    training = {key: COMMON[key] for key in ("model", "lr", "epochs", "batch_size", "seed")}
    plain = coterie.run("fedavg", rest, rounds=1, workers=1, **training)
    secure = coterie.load(deployment.run)
    # A mean of five is off by at most one rounding step; the rest is float32 arithmetic in another process.
    torch.testing.assert_close(
        secure.models[0], plain.models[0], rtol=1e-4, atol=1e-6 + Quantiser.for_sums(1.0, 6).step
    )


def test_the_cost_is_counted(killed):
    """Six offer keys, share secrets and check shares; five send masked vectors, agree on who came and reveal."""
    _, _, summary = killed
    size = 64 * 16 + 16 + 16 * 10 + 10
    plain = 5 * (4 * size + 8)
    boxes, commitments = 5 * SEALED_BYTES, 2 * KEY_BYTES * 6 + KEY_BYTES
    before = 6 * (2 * (OFFERED_BYTES + boxes + commitments + SIGNATURE_BYTES) + 4 * 5)
    masked = 5 * (8 * size + 16)
    after = 5 * 2 * (SIGNATURE_BYTES + 6 * SHARE_BYTES)
    assert summary.bytes.up == before + masked + after > plain
