"""One identity per model: a client's cluster, its file and its numbers agree wherever a run speaks of them.

Every number is worked out again from the files alone, with torch and nothing of the engine that measured it.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy, mse_loss

import coterie
from coterie.cli.main import main
from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError
from coterie.federation import Federation
from coterie.methods import CFL, Assignment, FedAvg, Info, Local, Server, method_classes
from coterie.randomness import derive
from coterie.runs import Result
from coterie.runs.records import ClientRecord, assignments, tree_of
from coterie.runs.words import served_elsewhere
from coterie.snapshot import saved
from coterie_views.report import write_report

SMALL: dict[str, Any] = {"scenario": "digits-permuted", "clients": 8, "groups": 2, "samples": 60, "workers": 1}
SPLIT = 6
"""Rounds in which CFL tells the two groups apart."""
OPTIONS = {
    "cfl": ({"rounds": SPLIT}, ""),
    "fedcuau": ({"rounds": 3}, "clusters=2"),
    "fedsem": ({"rounds": 3}, "clusters=3"),
    "flhc": ({"rounds": 3}, "warmup_rounds=1,clusters=3"),
    "groups": ({"rounds": 3}, "of={'client-0':'a','client-1':'b','client-2':'c'}"),
    "ifca": ({"rounds": 4}, "k=6,init=random"),
    "oneshot": ({"rounds": 3}, "k=3,warmup_rounds=1"),
}
"""What a method needs to have something to show in few rounds, and its own options."""


def options_of(name: str) -> tuple[str, dict[str, Any]]:
    more, own = OPTIONS.get(name, ({"rounds": 2}, ""))
    return f"{name}:{own}" if own else name, SMALL | more


def federation() -> Federation:
    return find_scenario("digits-permuted").build(clients=8, groups=2, samples=60, seed=derive(0, "scenario"))


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a finished run of a method, made when it is first asked for."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            method, options = options_of(name)
            made[name] = tmp_path_factory.mktemp(name) / "run"
            coterie.run(method, out=made[name], **options)
        return made[name]

    return folder


def check_scores(result: Result, clients: Federation) -> None:
    """Every client's loss and accuracy is that of its model on its test data."""
    assert [row.client for row in result.clients] == list(clients.ids)
    for row in result.clients:
        test = clients[row.client].test
        with torch.no_grad():
            outputs = result.model_of(row.client)(test.x)
        assert row.test_samples == len(test)
        assert row.loss == pytest.approx(float(cross_entropy(outputs, test.y)), rel=1e-6, abs=1e-6)
        assert row.accuracy == pytest.approx(float((outputs.argmax(1) == test.y).double().mean()), abs=1e-6)


@pytest.mark.parametrize("name", sorted(method_classes()))
def test_clients_scores_are_those_of_the_saved_models(name: str, folder_of: Any) -> None:
    check_scores(coterie.load(folder_of(name)), federation())


@pytest.mark.parametrize("name", sorted(method_classes()))
def test_cluster_ids_are_the_same_everywhere(name: str, folder_of: Any) -> None:
    folder = folder_of(name)
    summary = json.loads((folder / "summary.json").read_text())
    rows = json.loads((folder / "clients.json").read_text())["rows"]
    result = coterie.load(folder)
    cluster_of = {
        client: number
        for number, members in zip(summary["cluster_ids"], summary["clusters"], strict=True)
        for client in members
    }
    assert {row["client"]: row["cluster"] for row in rows} == cluster_of
    assert result.history.assignment() == cluster_of
    last = json.loads((folder / "history.jsonl").read_text().splitlines()[-1])
    assert {c["id"]: c["members"] for c in last["clusters"]} == {
        number: len(members) for number, members in zip(summary["cluster_ids"], summary["clusters"], strict=True)
    }
    kept = {path.stem for path in (folder / "models").iterdir()} - {"private"}
    used = {name for row in rows for name in (row["model"], *row["mixture"])}
    assert kept == {f"cluster-{number}" for number in summary["cluster_ids"]} | used
    for row in rows:
        file = load_file(folder / "models" / f"{row['model']}.safetensors")
        if not row["private"] and not row["mixture"]:
            state = result.model_of(row["client"]).state_dict()
            assert all(torch.equal(state[name], tensor) for name, tensor in file.items())


def test_some_methods_have_ids_that_are_no_positions(folder_of: Any) -> None:
    """Or the test before this one would say little."""
    ids = {name: coterie.load(folder_of(name)).summary.cluster_ids for name in ("cfl", "ifca")}
    assert ids["cfl"] == [1, 2]
    assert ids["ifca"] != list(range(len(ids["ifca"])))


def test_the_commands_about_clusters_speak_of_the_same_ids(
    folder_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of("cfl")
    result = coterie.load(folder)
    main(["tree", str(folder)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("node 0: 8 clients, split in round ")
    leaves = dict(re.findall(r"  cluster (\d+): (\d+) clients", "\n".join(lines)))
    sizes = dict(zip(result.summary.cluster_ids, map(len, result.clusters), strict=True))
    assert {int(number): int(size) for number, size in leaves.items()} == sizes
    (tmp_path / "new").mkdir()
    for client in federation():
        main(["tree", str(folder), "--client", client.id])
        own = result.record_of(client.id).cluster
        assert capsys.readouterr().out.splitlines()[-1].startswith(f"  cluster {own}: ")
        np.savez(tmp_path / "new" / f"{client.id}.npz", x=client.train.x.numpy(), y=client.train.y.numpy())
    main(["assign", str(folder), "--data", str(tmp_path / "new")])
    words = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {line[0]: int(line[1]) for line in words} == {row.client: row.cluster for row in result.clients}
    assert {(line[1], " ".join(line[2:])) for line in words} == {
        (str(number), f"0 → {number} {size} clients") for number, size in sizes.items()
    }


def test_a_client_served_by_an_ancestor_names_its_file_and_scores_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CFL's own fallback, where one cluster's model is worthless in the end."""
    finish = CFL.finish

    def spoilt(self: CFL, state: Any, server: Server) -> Any:
        leaf = state.tree.nodes[1]
        model = leaf.model.clone()
        model[-10] += 50.0  # the bias of label 0
        return finish(self, replace(state, tree=state.tree.updated(replace(leaf, model=model))), server)

    monkeypatch.setattr(CFL, "finish", spoilt)
    method, options = options_of("cfl")
    coterie.run(method, out=tmp_path / "run", **options)
    result = coterie.load(tmp_path / "run")
    assert {row.client: row.model for row in result.clients} == {
        row.client: "cluster-0" if row.cluster == 1 else "cluster-2" for row in result.clients
    }
    assert {row.cluster for row in result.clients} == {1, 2}
    assert {path.stem for path in (tmp_path / "run" / "models").iterdir()} == {"cluster-0", "cluster-1", "cluster-2"}
    check_scores(result, federation())
    assert [node.id for node in tree_of(result.history)] == [0, 1, 2]
    assert assignments(result.history) == {row.client: row.cluster for row in result.clients}
    check_fallback_is_told(tmp_path / "run", result)
    assert coterie.resume(tmp_path / "run", workers=1).history == result.history  # and not told twice
    assert len(result.models) == 2  # one per cluster, whoever is served by it
    with torch.no_grad():
        assert torch.equal(result.models[0], result.state.tree.nodes[1].model)


def check_fallback_is_told(folder: Path, result: Result) -> None:
    """History, tables, tree, notebook and report say who is served by cluster 0, and the same numbers."""
    served = [row.client for row in result.clients if row.cluster == 1]
    last = result.history[-1]
    assert last.metrics == result.summary.metrics
    for cluster in last.clusters:
        own = [row.accuracy for row in result.clients if row.cluster == cluster.id]
        assert cluster.accuracy == pytest.approx(np.mean(own))
    [event] = [event for event in last.events if event.kind == "fallback"]
    assert event.details == {"served": dict.fromkeys(served, 0)}
    assert f"{served[0]} by model 0" in event.text
    assert event.text.endswith("(fallback=false gives every client its cluster's model)")
    assert f"{served[0]} (cluster 1) by cluster-0" in result._repr_html_()
    page = write_report(folder).read_text()
    assert "<th>model</th>" in re.sub(r"<th[^>]*>", "<th>", page)
    assert f"{len(served)} clients are served by a model further up" in page
    assert event.text.replace("'", "&#x27;").replace("&#x27;", "&#39;") in page.replace("&#x27;", "&#39;")


def test_the_command_tells_of_the_fallback(folder_of: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = coterie.load(folder_of("cfl")).clients
    assert served_elsewhere(rows) == ""
    moved = [replace(row, model="cluster-0") for row in rows]
    assert served_elsewhere(moved).startswith("served by another model than their cluster's: client-0 (cluster ")
    assert served_elsewhere(moved).endswith(", 3 more")
    main(["tree", str(folder_of("cfl"))])
    assert "another model" not in capsys.readouterr().out


@saved
class Odd:
    """A state without a field that anybody else knows."""

    apples: torch.Tensor
    pears: torch.Tensor


class OwnIds:
    """Clusters 7 and 40; one client is served by a third model, with id 3."""

    def start(self, server: Server) -> Odd:
        return Odd(server.initial_model(0), server.initial_model(1))

    def round(self, state: Odd, t: int, server: Server) -> tuple[Odd, Info]:
        return state, Info()

    def assignment(self, state: Odd, server: Server) -> Assignment:
        first, second = server.clients[:3], server.clients[3:]
        mean = (state.apples + state.pears) / 2
        models = [state.apples, state.pears]
        return Assignment(
            models, [first, second], ids=[7, 40], served_by={first[1]: 3, second[0]: 7}, other_models={3: mean}
        )


def test_a_method_of_ones_own_has_its_own_ids(tmp_path: Path) -> None:
    clients = federation()
    fresh = coterie.run(OwnIds(), clients, model="mlp", rounds=2, out=tmp_path / "run")
    result = coterie.load(tmp_path / "run")
    assert result.clients == fresh.clients
    assert (result.summary.cluster_ids, [len(c) for c in result.clusters]) == ([7, 40], [3, 5])
    assert [(row.cluster, row.model) for row in result.clients[:4]] == [
        (7, "cluster-7"),
        (7, "cluster-3"),
        (7, "cluster-7"),
        (40, "cluster-7"),
    ]
    assert sorted(path.name for path in (tmp_path / "run" / "models").iterdir()) == [
        "cluster-3.safetensors",
        "cluster-40.safetensors",
        "cluster-7.safetensors",
    ]
    check_scores(result, clients)


@pytest.mark.parametrize("privacy", ["permutation", "signed-permutation"])
@pytest.mark.parametrize(
    "method", ["fedavg", "local", "ifca:k=2", "oneshot:k=2,warmup_rounds=1", "fedem", "fedsoft", "ditto"]
)
def test_models_behind_a_mask_are_saved_as_the_clients_use_them(method: str, privacy: str, tmp_path: Path) -> None:
    fresh = coterie.run(method, privacy=privacy, out=tmp_path / "run", rounds=2, **SMALL)
    check_scores(fresh, federation())
    check_scores(coterie.load(tmp_path / "run"), federation())


@pytest.mark.parametrize(
    "method", ["local", "fedper", "fedavg", "fedsem:clusters=2", "fedem", "fedrc", "fedsoft", "ditto", "clove"]
)
def test_clients_that_were_never_asked_have_a_model_too(method: str, tmp_path: Path) -> None:
    fresh = coterie.run(method, participation=0.3, out=tmp_path / "run", rounds=1, **SMALL)
    check_scores(fresh, federation())
    check_scores(coterie.load(tmp_path / "run"), federation())


def test_other_precisions_and_targets(tmp_path: Path) -> None:
    coterie.run("local", precision="float64", out=tmp_path / "double", rounds=2, **SMALL)
    double = coterie.load(tmp_path / "double")
    assert double.vector_of("client-0").dtype == torch.float64
    for row in double.clients:
        test = federation()[row.client].test
        with torch.no_grad():
            outputs = double.model_of(row.client).double()(test.x.double())
        assert row.loss == pytest.approx(float(cross_entropy(outputs, test.y)), rel=1e-6)
    options: dict[str, Any] = {"scenario": "linear-mixture", "clients": 4, "samples": 20, "seed": 3}
    coterie.run("fedavg", out=tmp_path / "line", rounds=2, **options)
    line = coterie.load(tmp_path / "line")
    data = find_scenario("linear-mixture").build(clients=4, samples=20, seed=derive(3, "scenario"))
    for row in line.clients:
        test = data[row.client].test
        with torch.no_grad():
            outputs = line.model_of(row.client)(test.x)
        assert row.accuracy is None
        assert row.loss == pytest.approx(float(mse_loss(outputs.reshape(test.y.shape), test.y)), rel=1e-5)


def test_a_model_that_nobody_here_knows_is_one_line() -> None:
    result = coterie.run(Local(), federation(), model="mlp", rounds=1)
    row = result.clients[0]
    hidden = replace(result, clients=[replace(row, model=None), *result.clients[1:]])
    with pytest.raises(ConfigError, match=f"the model of client '{row.client}' is not known here"):
        hidden.model_of(row.client)
    with pytest.raises(ConfigError, match="did you mean 'client-1'"):
        result.record_of("client1")
    assert isinstance(result.record_of("client-1"), ClientRecord)
    with pytest.raises(ConfigError, match="only its arrays are"):
        replace(coterie.run(FedAvg(), federation(), model="mlp", rounds=1), architecture=None).model_of("client-0")
