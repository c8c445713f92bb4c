"""Runs from Python: repeatable, complete, resumable with the objects they were made with."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import coterie
from coterie.errors import ConfigError, DataError, RunError
from coterie.federation import Federation
from coterie.federation.fingerprint import fingerprint
from coterie.methods import Assignment, FedAvg, Info
from coterie.runs.assemble import describe_method
from coterie.runs.config import make_config, overlay, read_config_file, size_in_bytes
from coterie.runs.records import Bytes, Spread, to_json


def toy(shift=0.0, n=20):
    rng = np.random.default_rng(0)
    data = {}
    for client in ("ann", "bob", "cyd"):
        x = rng.normal(size=(n, 3)).astype(np.float32)
        data[client] = (x + shift, (x[:, 0] > 0).astype(int))
    return Federation.from_tensors(data, groups=[0, 0, 1])


def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def files(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.suffix in (".safetensors", ".json")}


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_two_runs_with_one_seed_are_identical_but_for_the_seconds(tmp_path, method):
    options = {"scenario": "digits-rotated", "clients": 4, "samples": 20, "rounds": 2, "seed": 7, "participation": 0.5}
    summaries = []
    for name in ("a", "b"):
        coterie.run(method, out=tmp_path / name, **options)
        summaries.append(json.loads((tmp_path / name / "summary.json").read_text()))
        assert summaries[-1].pop("seconds") > 0
        del summaries[-1]["checksum"], summaries[-1]["seal"]  # of the seconds too
    assert summaries[0] == summaries[1]
    models = [p.relative_to(tmp_path / "a") for p in (tmp_path / "a" / "models").iterdir()]
    # Local clients keep the whole model: cluster files hold the model they started from, one file what they made of it.
    assert len(models) == (1 if method == "fedavg" else 5)
    for model in models:
        assert (tmp_path / "a" / model).read_bytes() == (tmp_path / "b" / model).read_bytes()
    other = coterie.run(method, **options | {"seed": 8})
    assert to_json(other.summary.metrics) != summaries[0]["metrics"]


def test_summary_has_the_promised_shape():
    result = coterie.run("fedavg", toy(), model=normed, rounds=2)
    summary = result.summary
    assert set(to_json(summary)) == {
        "method", "scenario", "model", "seed", "rounds", "clients", "clusters", "cluster_ids", "metrics", "ari",
        "bytes", "seconds", "initial", "personalised", "epsilon", "delta", "warnings", "validation", "stopped",
        "best_round", "hidden_sizes", "train_samples", "passes", "exchanges",
    }  # fmt: skip
    assert set(summary.metrics) == {"accuracy", "loss"}
    assert {"mean", "min", "max", "variance"} <= set(to_json(summary.accuracy))
    assert (summary.method, summary.model, summary.rounds, summary.clients) == ("fedavg", "normed", 2, 3)
    assert (summary.clusters, summary.cluster_ids) == ([["ann", "bob", "cyd"]], [0])
    size = result.layout.size
    # Per round and client: 4 bytes per number of the model, and 8 for the loss in the reply.
    assert summary.bytes == Bytes(up=2 * 3 * (4 * size + 8), down=2 * 3 * 4 * size)
    assert summary.ari == 0.0
    table = pytest.importorskip("pandas") and result.history.to_pandas()
    assert list(table.index) == [1, 2]
    assert "metrics.accuracy.mean" in table


def test_accuracy_is_each_clients_own_with_the_model_it_was_given():
    federation = toy()
    result = coterie.run("local", federation, model=normed, rounds=3, lr=0.3)
    for row in result.clients:
        test = federation[row.client].test
        module = result.model_of(row.client).eval()
        expected = (module(test.x).argmax(1) == test.y).float().mean().item()
        assert row.accuracy == pytest.approx(expected)
        assert row.test_samples == len(test)
    assert result.summary.accuracy == Spread.of([row.accuracy for row in result.clients])
    with pytest.raises(ConfigError, match="did you mean 'bob'"):
        result.model_of("bobb")


def test_saved_models_load_into_the_module_batchnorm_included(tmp_path):
    result = coterie.run("fedavg", toy(), model=normed, rounds=2, out=tmp_path / "run")
    module = normed()
    module.load_state_dict(load_file(tmp_path / "run" / "models" / "cluster-0.safetensors"))
    assert torch.equal(result.layout.read(module), result.models[0])
    assert module[1].num_batches_tracked > 0


def test_resume_with_the_same_objects_only(tmp_path):
    federation, module = toy(), normed()
    whole = coterie.run(FedAvg(server_lr=0.5), federation, model=module, rounds=3, out=tmp_path / "run")
    for name in ("summary.json", "checkpoint.safetensors"):
        (tmp_path / "run" / name).unlink()
    asked = r"resume it in Python with coterie\.resume\('.*run', federation=…, model=…\), .*model: Sequential"
    with pytest.raises(RunError, match=asked):
        coterie.resume(tmp_path / "run")
    with pytest.raises(RunError, match="begun with federation="):
        coterie.resume(tmp_path / "run", federation=toy(shift=0.5), model=module)
    with pytest.raises(RunError, match="begun with method="):
        coterie.resume(tmp_path / "run", federation=federation, model=module, method=FedAvg())
    with pytest.raises(ConfigError, match="unknown option 'rounds' of resume"):
        coterie.resume(tmp_path / "run", federation=federation, model=module, rounds=9)
    again = coterie.resume(tmp_path / "run", federation=federation, model=module)
    assert torch.equal(again.models[0], whole.models[0])


def test_fingerprint_sees_one_changed_number_anywhere():
    seen = {fingerprint(toy())}
    for part in ("train", "validation", "test"):
        for what in ("x", "y"):
            federation = toy()
            values = getattr(federation["cyd"].part(part), what)
            values.view(-1)[-1] += 1
            seen.add(fingerprint(federation))
    assert len(seen) == 7
    assert fingerprint(toy()) in seen


def test_a_diverging_run_ends_with_one_line_or_nulls_never_with_a_crash():
    try:
        result = coterie.run(scenario="linear-mixture", clients=4, samples=20, rounds=60, lr=8.0)
    except RunError as problem:
        assert "lower the learning rate" in str(problem)  # noqa: PT017 (either end is right)
    else:
        json.dumps(to_json(result.summary), allow_nan=False)
        json.dumps(to_json(result.history), allow_nan=False)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scenario": "digits-iid", "federation": toy()}, ConfigError, "scenario does not go with a federation"),
        ({"federation": toy(), "roundz": 3}, ConfigError, "unknown option 'roundz': did you mean 'rounds'"),
        ({"federation": toy(), "rounds": True}, ConfigError, "rounds=True: expected whole number from 1"),
        ({"federation": toy(), "engine": "rya"}, ConfigError, "engine='rya': expected one of local, ray"),
        ({"federation": toy(), "model": nn.Linear(7, 2)}, ConfigError, r"cannot take an input of shape \(3,\)"),
        ({"federation": toy(), "model": nn.Linear(3, 1)}, ConfigError, "1 outputs, the data has 2 classes"),
        ({"federation": toy(), "model": "mpl"}, ConfigError, "mlp"),
        ({"data": "nowhere"}, DataError, "no such folder"),
        ({"data": "nowhere", "clients": 3}, ConfigError, "clients=3 goes with a scenario"),
        ({"scenario": "xor", "data": "x"}, ConfigError, "give one of the two"),
        ({"scenario": "digits-idd"}, ConfigError, "did you mean 'digits-iid'"),
    ],
)
def test_mistakes_from_python(arguments, error, message):
    with pytest.raises(error, match=message):
        coterie.run("fedavg", **arguments)


def test_callbacks_follow_the_run():
    told = []

    class Listener:
        def on_start(self, run, done):
            told.append(("start", done, len(run.server.clients)))

        def on_event(self, t, event):
            told.append(("event", t))

        def on_round(self, record):
            told.append(("round", record.round))

        def on_end(self, result):
            told.append(("end", result.summary.rounds))

    coterie.run("fedavg", toy(), rounds=2, callbacks=[Listener()])
    assert told == [("start", 0, 3), ("round", 1), ("round", 2), ("end", 2)]


class Forgetful:
    """Loses a client, as published code does from the second split on."""

    def start(self, server):
        return server.initial_model()

    def round(self, state, t, server):
        return state, Info()

    def assignment(self, state, server):
        return Assignment([state], [server.clients[:-1]])


def test_clusters_that_are_no_partition_stop_the_run():
    with pytest.raises(AssertionError, match="not a partition"):
        coterie.run(Forgetful(), toy(), rounds=1)


def test_rounds_between_evaluations():
    history = coterie.run("fedavg", toy(), rounds=5, evaluate_every=2).history
    assert [r.round for r in history if r.metrics] == [2, 4, 5]


def test_spread_by_hand():
    values = [i / 10 for i in range(20)] + [float("nan"), None]
    assert to_json(Spread.of(values)) == pytest.approx(
        {"mean": 0.95, "min": 0.0, "max": 1.9, "variance": 0.3325, "worst10": 0.05, "best10": 1.85, "clients": 20}
    )
    assert Spread.of([float("nan"), None]) == Spread.of([]) == Spread()
    assert to_json(Spread.of([1.0, float("inf")])) == dict(to_json(Spread()), min=1.0, worst10=1.0, clients=2)
    assert to_json({"a": [1, (float("nan"), "x")]}) == {"a": [1, [None, "x"]]}


def test_method_is_written_so_that_it_reads_back():
    from coterie.methods import make_method

    assert describe_method(FedAvg()) == "fedavg"
    text = describe_method(FedAvg(weighting="uniform", server_lr=0.25))
    assert text == "fedavg:weighting=uniform,server_lr=0.25"
    assert make_method(text) == FedAvg("uniform", 0.25)


def test_a_later_layer_takes_the_place_of_its_rival():
    assert overlay({"scenario": "xor", "steps": 3, "seed": 1}, {"data": "d", "epochs": 2}) == {
        "seed": 1, "data": "d", "epochs": 2,
    }  # fmt: skip
    assert overlay({"scenario": "xor"}, {"seed": 1}) == {"scenario": "xor", "seed": 1}


def test_config_file_with_a_table_for_the_method(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('rounds = 3\n[method]\nname = "fedavg"\nweighting = "uniform"\nserver_lr = 0.5\n')
    assert make_config(read_config_file(path)).method == "fedavg:weighting='uniform',server_lr=0.5"
    for bad in ("[method]\nname = 3", "[method]\nweighting = 'uniform'"):
        path.write_text(bad)
        with pytest.raises(ConfigError, match="needs a key 'name'"):
            read_config_file(path)


def test_config_file_with_tables_for_groups(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text('engine = "local"\n[training]\nepochs = 2\nclass_weights = [1, 5]\n[data]\ndata = "here"\n')
    table = read_config_file(path)
    assert table == {"engine": "local", "epochs": 2, "class_weights": "1,5", "data": "here"}
    assert overlay(table, {"steps": 3, "scenario": "digits-iid"}) == {
        "engine": "local", "class_weights": "1,5", "steps": 3, "scenario": "digits-iid",
    }  # fmt: skip


def test_memory_sizes():
    assert size_in_bytes("memory", "8GB") == 8 * 10**9
    assert size_in_bytes("memory", " 1.5 GiB") == int(1.5 * 2**30)
    assert size_in_bytes("memory", "100b") == 100
    for bad in ("8", "GB", "-1GB", "lots"):
        with pytest.raises(ConfigError, match="expected a size such as 8GB"):
            size_in_bytes("memory", bad)
