"""SIGKILL of a node, of the ServerApp and of the SuperLink: nothing is lost but the round in flight."""

from __future__ import annotations

import os
import signal

import pytest
from trials import CFL, Trial, assert_same_models, history

from coterie.flower.local import Network


def server_apps(trial):
    return [pid for pid, words in trial.network.processes().items() if words.startswith("flwr-serverapp")]


def submit_and_wait_for_first_round(trial, name, method, rounds, changes=None):
    """A run whose first round is done and whose second is under way."""
    deployment = trial.app(name, method, rounds)
    run = trial.network.submit(deployment.app, changes, name=name)
    written, saved = deployment.run / "history.jsonl", deployment.run / "checkpoint.safetensors"
    trial.wait_for(lambda: len(history(deployment)) >= 1 or run.poll() is not None, name)
    trial.wait_for(lambda: saved.stat().st_mtime_ns >= written.stat().st_mtime_ns or run.poll() is not None, name)
    assert run.poll() is None, trial.network.log(name).read_text()[-3000:]
    return deployment, run


def assert_as_if_nothing_had_happened(trial, deployment, summary, before, folder):
    """The clusters and models of an uninterrupted run; and rounds that were done (their times tell) are not done again.

    The last round before the kill may have been written down and not yet saved.
    """
    assert 1 <= len(before) < 3
    assert history(deployment)[: max(1, len(before) - 1)] == before[: max(1, len(before) - 1)]
    local = trial.local(CFL, 3, folder)
    assert summary.clusters == local.clusters
    assert len(local.clusters) == 2
    assert [record.round for record in history(deployment)] == [1, 2, 3]
    assert_same_models(deployment.run, folder)


def test_a_killed_node_is_left_out_and_nobody_takes_its_place(trial):
    deployment, run = submit_and_wait_for_first_round(trial, "node", "ifca:k=2,init=random", 5, {"timeout": 25.0})
    node = trial.network.nodes["node-3"]
    node.process.kill()
    node.process.wait()
    node.started = 0.0  # no pause: the person in charge is quick
    assert trial.network.tend() == ["node-3"]
    summary = trial.finish(run, deployment, "node")
    records = history(deployment)
    assert [record.round for record in records] == [1, 2, 3, 4, 5]
    assert [fault.client for fault in records[1].faults] == ["client-3"]
    assert "answer" in records[1].faults[0].reason or "gone" in records[1].faults[0].reason
    # Its node comes back without a key, as another: the id stays its own until the grid has lost the dead node.
    later = [fault.reason for record in records[1:] for fault in record.faults]
    assert any("it can return when the grid has lost that one" in reason for reason in later), later
    others = [[client for client in members if client != "client-3"] for members in summary.clusters]
    assert sorted(filter(None, others)) == [["client-0", "client-2"], ["client-1"]]


def test_a_killed_server_app_goes_on_in_a_new_run(trial, tmp_path):
    deployment, _ = submit_and_wait_for_first_round(trial, "server", CFL, 3)
    (process,) = server_apps(trial)
    os.kill(process, signal.SIGKILL)
    before = history(deployment)
    again = trial.network.submit(deployment.app, name="server-again")
    summary = trial.finish(again, deployment, "server-again")
    assert_as_if_nothing_had_happened(trial, deployment, summary, before, tmp_path / "local")


@pytest.fixture
def small_trial(tmp_path):
    """A SuperLink of its own, which keeps what it knows on disk."""
    with Network(tmp_path / "flower", database=True) as network:
        made = Trial(network, tmp_path, nodes=2)
        made.add_nodes()
        yield made
    assert not network.processes()


def test_a_killed_super_link_starts_again_on_its_database(small_trial, tmp_path):
    trial = small_trial
    deployment, _ = submit_and_wait_for_first_round(trial, "link", CFL, 3)
    link = trial.network.link
    link.kill()
    link.wait()
    before = history(deployment)
    trial.wait_for(lambda: not server_apps(trial), "link")
    trial.network.start_link()
    again = trial.network.submit(deployment.app, name="link-again")
    summary = trial.finish(again, deployment, "link-again")
    assert_as_if_nothing_had_happened(trial, deployment, summary, before, tmp_path / "local")
