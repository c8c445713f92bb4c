"""The methods over a real SuperLink give what the local engine gives; unfriendly and unmodified clients too."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from trials import CFL, COMMON, NODES, TRUTH, assert_same_models, history, models

import coterie
from coterie.data.scenarios import find_scenario
from coterie.randomness import derive

METHODS = {"fedavg": ("fedavg", 2), "cfl": (CFL, 3), "ifca": ("ifca:k=2,init=random", 2),
           "fedcuau": ("fedcuau:clusters=2", 2), "flt": ("flt:clusters=2,distance=matching,signature=centroids", 2),
           "own": ("angles:clusters=2", 2), "screen": ("screen", 2),
           "rule": ("cfl:rule=opposed(above=0.2),fallback=false", 2)}  # fmt: skip
"""The last three are printed in docs/methods.md and docs/extending.md: packages with a task, a FedAvg and a rule."""

UNFRIENDLY = """
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

import client_app as honest
from coterie.flower.folding import unfold

app = ClientApp()


@app.query("describe")
def describe(message, context):
    return honest.app(message, context)


@app.query("coterie")
def coterie(message, context):
    reply, number = honest.app(message, context), context.node_config["partition-id"]
    content = unfold(reply.content)
    vectors = [name for name, record in content.items() if isinstance(record, ArrayRecord)]
    if number < 2 or not vectors:
        return reply
    for name in vectors:
        arrays = {key: array.numpy() for key, array in content[name].items()}
        if number == 2:
            bad = {key: np.full_like(values, np.nan) for key, values in arrays.items()}
        else:
            bad = {f"other.{key}": np.zeros(5_000_000, np.float32) for key in arrays}
        content[name] = ArrayRecord({key: Array(values) for key, values in bad.items()})
    return Message(content, reply_to=message)
"""

DROPIN_SERVER = """
import json
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp

from coterie.flower import CFL
from dropin.task import Net

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = CFL(fraction_evaluate=0.0, min_available_nodes=4, min_train_nodes=4,
                   rule="paper(eps1=100.0,eps2=0.001,gamma_max=0.0,wait=2)")
    config = context.run_config
    strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()),
                   train_config=ConfigRecord({"lr": config["learning-rate"]}), num_rounds=config["num-server-rounds"])
    found = {"clusters": strategy.clusters, "models": len(strategy.models)}
    Path(config["result"]).write_text(json.dumps(found, default=str))
"""


def dropin_app(folder: Path) -> Path:
    """The example's app with its ClientApp as it is, and a ServerApp that splits early and notes the clusters."""
    example = Path(__file__).parents[2] / "examples" / "flower-dropin"
    shutil.copytree(example, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "dropin" / "server_app.py").write_text(DROPIN_SERVER)
    project = folder / "pyproject.toml"
    project.write_text(project.read_text() + f'result = "{folder.parent / "dropin.json"}"\n')
    return folder


@pytest.fixture(scope="module")
def begun(trial):
    """All runs of this file at once: a network mostly waits, and its nodes must keep the runs apart anyway."""
    runs = {}
    for name, (method, rounds) in METHODS.items():
        app = trial.app(name, method, rounds)
        runs[name] = (trial.network.submit(app.app, name=name), app)
    unfriendly = trial.app("unfriendly", "fedavg", 1)
    (unfriendly.app / "unfriendly.py").write_text(UNFRIENDLY)
    project = unfriendly.app / "pyproject.toml"
    project.write_text(project.read_text().replace("client_app:app", "unfriendly:app"))
    runs["unfriendly"] = (trial.network.submit(unfriendly.app, name="unfriendly"), unfriendly)
    runs["dropin"] = (
        trial.network.submit(dropin_app(trial.root / "dropin"), {"num-server-rounds": 3}, name="dropin"),
        None,
    )
    return runs


@pytest.mark.parametrize("name", METHODS)
def test_a_method_gives_what_it_gives_locally(trial, begun, tmp_path, name):
    method, rounds = METHODS[name]
    local = trial.local(method, rounds, tmp_path / "local")
    run, deployment = begun[name]
    summary = trial.finish(run, deployment, name)
    assert summary.clusters == local.clusters
    if name in {"cfl", "ifca", "flt", "own"}:
        assert sorted(summary.clusters) == TRUTH
    assert_same_models(deployment.run, tmp_path / "local")
    assert summary.accuracy.mean == pytest.approx(local.summary.accuracy.mean, abs=0.02)
    assert summary.ari == local.summary.ari
    records = history(deployment)
    assert [record.faults for record in records] == [[]] * rounds
    assert [record.bytes for record in records] == [record.bytes for record in local.history]


def test_malicious_replies_never_enter_the_average(trial, begun, tmp_path):
    run, deployment = begun["unfriendly"]
    trial.finish(run, deployment, "unfriendly")
    assert {fault.client for fault in history(deployment)[0].faults} == {"client-2", "client-3"}
    scenario = find_scenario(COMMON["scenario"])
    sizes = {key: COMMON[key] for key in ("samples", "groups")}
    honest = scenario.build(clients=NODES, **sizes, seed=derive(COMMON["seed"], "scenario")).subset(
        ["client-0", "client-1"]
    )
    own = {key: COMMON[key] for key in ("model", "lr", "epochs", "batch_size", "seed")}
    coterie.run("fedavg", honest, **own, rounds=1, workers=1, out=tmp_path / "local")
    assert_same_models(deployment.run, tmp_path / "local")
    assert len(models(deployment.run)) == 1


def test_an_unmodified_app_finds_its_groups_under_our_strategy(trial, begun):
    run, _ = begun["dropin"]
    trial.wait_end(run, "dropin")
    result = trial.root / "dropin.json"
    assert result.exists(), trial.network.log("dropin").read_text()[-3000:]
    found = json.loads(result.read_text())
    partition_of = {}
    for number in range(NODES):
        said = trial.network.log(f"node-{number}").read_text()
        partition_of |= dict.fromkeys(re.findall(r"SuperNode ID: (\d+)", said), number)  # another one at each start
    clusters = [sorted(partition_of[str(node)] for node in members) for members in found["clusters"]]
    assert sorted(clusters) == [[0, 2], [1, 3]]
    assert found["models"] == 2
