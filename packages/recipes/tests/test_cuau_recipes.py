"""FedCUAU's recipes on the embedded digits: rows, cells that are kept, and the arithmetic of the figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from coterie import Federation
from coterie.data import find_scenario
from coterie.methods import FedAvg
from coterie.models import build
from coterie.runs import assemble, global_accuracy
from coterie_recipes import Study, cuau, cuau_cifar, cuau_femnist, cuau_figures, cuau_tables, reproduce
from coterie_recipes.cuau import CuauSetting, label_distance, measured_run

SMALL = CuauSetting("digits-dirichlet-quarters", "mlp:hidden=8", 3, 0.1, "step:0.1@2", samples=40, clients=8)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same recipes on a federation that takes no time."""
    monkeypatch.setattr(cuau, "FASHION", SMALL)
    monkeypatch.setattr(cuau_figures, "FASHION", SMALL)
    monkeypatch.setattr(cuau_figures, "SMALL_CIFAR", replace(SMALL, model="cnn-small"))


def study_in(path: Path, seeds: int = 1) -> Study:
    return Study(path, seeds=seeds, workers=1)


def test_table3_has_the_base_and_fedcuau_and_does_not_compute_twice(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    results = reproduce("cuau-table3", study)
    found = {(row["setting"], row["measure"]): row for row in results["rows"]}
    assert study.computed == 4
    assert found["fedavg + FedCUAU", "initial"]["paper"] == 83.75
    assert found["fedavg", "gain in initial"]["paper"] == 1.26
    assert ("fedper", "initial") not in found
    assert ("fedper + FedCUAU", "personalised") in found
    again = study_in(tmp_path)
    assert reproduce("cuau-table3", again)["rows"] == results["rows"]
    assert again.computed == 0
    assert "fedbabu + FedCUAU" in (tmp_path / "table.md").read_text()


def test_writers_have_both_tables_and_each_cluster_its_last_convolution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = replace(SMALL, model="cnn-small", scenario="digits-iid", rounds=2)
    monkeypatch.setattr(cuau_femnist, "writers_setting", lambda study: setting)
    results = reproduce("cuau-femnist", study_in(tmp_path))
    rows = {(row["setting"], row["measure"]): row for row in results["rows"]}
    assert rows["Table 3: fedavg + FedCUAU", "personalised"]["paper"] == 78.54
    assert rows["Table 4: fedper, w^C2", "C2 personalised"]["paper"] == 53.0
    assert rows["Table 3: fedavg", "initial"]["ours"] == rows["Table 4: fedavg, w^C2", "initial"]["ours"]
    assert any("which the data folder lacks" in note for note in results["notes"])


def test_the_row_without_fedcuau_is_what_the_base_method_alone_gives(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    cell = cuau_tables.with_and_without(study, SMALL, "fedavg", 0)
    initial, [personal] = measured_run(
        study,
        "alone",
        SMALL.config(study, 0),
        lambda done: (done.initial(0), done.personal([done.run.server.clients])),
        method=FedAvg(),
    )
    assert cell["initial"][1] == pytest.approx(initial)
    assert cell["personal"][1][2] == pytest.approx(personal)


def test_table4_and_table3_agree_where_they_say_the_same(tmp_path: Path) -> None:
    three = reproduce("cuau-table3", study_in(tmp_path / "3"))["rows"]
    four = reproduce("cuau-table4", study_in(tmp_path / "4"))["rows"]
    values = {(row["setting"], row["measure"]): row["ours"]["mean"] for row in [*three, *four]}
    for base in ("fedavg", "fedprox", "fedbabu"):
        assert values[base, "initial"] == values[f"{base}, w^C2", "initial"]
        assert values[f"{base} + FedCUAU", "initial"] == values[f"{base}, w^C1", "initial"]
        assert values[base, "personalised"] == values[f"{base}, w^C2", "personalised"]
    assert len(four) == 3 * 8 + 6


def test_table1_trains_some_quarters_and_evaluates_all(tmp_path: Path) -> None:
    results = reproduce("cuau-table1", study_in(tmp_path))
    assert len(results["rows"]) == 7 * 6
    found = {(row["setting"], row["measure"]): row["ours"]["mean"] for row in results["rows"]}
    quarters = [found["C4", f"C{q} personalised"] for q in (1, 2, 3, 4)]
    assert found["C4", "personalised"] == pytest.approx(np.mean(quarters))
    assert found["C1", "initial"] != found["C4", "initial"]


def test_cifar_tables_share_the_runs_and_are_resumed_seed_by_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuau_cifar, "QUICK", replace(cuau_cifar.QUICK, setting=SMALL, of_each=1))
    first = reproduce("cuau-cifar", study_in(tmp_path))
    found = {(row["setting"], row["measure"]): row for row in first["rows"]}
    everybody, base = "Table 1: C1+C2+C3+C4", "Table 4: fedavg, w^C2"
    for measure in ("initial", "personalised"):
        assert found[everybody, measure]["ours"] == found[base, measure]["ours"]
    quarters = [found[everybody, f"C{q} personalised"]["ours"]["mean"] for q in (1, 2, 3, 4)]
    assert found[everybody, "personalised"]["ours"]["mean"] == pytest.approx(np.mean(quarters))
    apart = found["Table 4: fedavg, w^C1 minus w^C2", "C2 personalised"]
    models = [found[f"Table 4: fedavg, w^C{c}", "C2 personalised"]["ours"]["mean"] for c in (1, 2)]
    assert apart["ours"]["mean"] == pytest.approx(models[0] - models[1])
    assert apart["paper"] == -2.59
    less = found["Table 1: trained by all, minus by C1 only", "C4 personalised"]
    assert less["paper"] == 11.11
    trained = [found[f"Table 1: {who}", "C4 personalised"]["ours"]["mean"] for who in ("C1+C2+C3+C4", "C1")]
    assert less["ours"]["mean"] == pytest.approx(trained[0] - trained[1])
    both = study_in(tmp_path, seeds=2)
    rows = reproduce("cuau-cifar", both)["rows"]
    assert both.computed == 4  # of the second seed only
    assert [row["ours"]["values"][0] for row in rows] == [row["ours"]["mean"] for row in first["rows"]]


def test_full_scale_keeps_its_run_and_resumes_it(tmp_path: Path) -> None:
    study = Study(tmp_path, scale="full", workers=1)
    config = SMALL.config(study, 0)
    first = measured_run(study, "one", config, lambda done: done.state.model)
    assert (tmp_path / "runs" / "one" / "summary.json").exists()
    again = measured_run(study, "one", config, lambda done: done.state.model)
    assert torch.equal(first, again)


def test_figure1_reports_correlations_and_the_course(tmp_path: Path) -> None:
    results = reproduce("cuau-fig1", study_in(tmp_path))
    found = {(row["setting"], row["measure"]): row["ours"]["mean"] for row in results["rows"]}
    for name in ("cifar10", "fashion-mnist"):
        assert found[name, "Spearman, client's CUAU and label distance"] > 0.5
        assert found[name, "mean CUAU of C1"] < found[name, "mean CUAU of C4"]
    assert ("round 0", "mean CUAU of C1") in found
    assert ("round 3", "mean CUAU of C4") in found
    assert 0 <= found["FedAvg run", "share of rounds where CUAU rises from C1 to C4"] <= 1


def test_figure3_has_every_layer_and_quarter(tmp_path: Path) -> None:
    results = reproduce("cuau-fig3", study_in(tmp_path))
    cell = json.loads((tmp_path / "cells" / "seed0.json").read_text())
    assert cell["layers"] == ["hidden", "head"]
    assert len(results["rows"]) == 2 * 2 * 4
    assert np.array(cell["cosine"]).max() <= 1 + 1e-9
    assert np.array(cell["change"]).min() > 0


def test_the_mean_cosine_of_all_pairs_is_that_of_all_pairs(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    run, _ = assemble(SMALL.config(study, 0), method=FedAvg())
    server, module = run.server, run.architecture(0).eval()
    model = server.initial_model()
    images = torch.rand(7, 1, 8, 8)
    clients = server.clients[:3]
    cosine, change = cuau_figures._one_quarter(server, model, module, clients, images)
    training = replace(server.schedule.at(3), epochs=5)
    seen, moves = [], []
    for reply in server.ask(server.training_requests(clients, model, 4, training)):
        assert reply.vector is not None
        server.layout.write(model + reply.vector, module)
        seen.append(module(images).detach())
        moves.append(reply.vector[server.layout.select("head")[0]].abs().mean())
    pairs = [nn.functional.cosine_similarity(seen[i], seen[j]).mean() for i, j in ((0, 1), (0, 2), (1, 2))]
    assert cosine["head"] == pytest.approx(float(torch.stack(pairs).mean()), abs=1e-5)
    assert change["head"] == pytest.approx(float(torch.stack(moves).mean()), rel=1e-5)
    run.engine.close()


def test_representations_of_named_parts() -> None:
    module = build("mlp:hidden=5", (1, 8, 8), 10, 0)
    x = torch.rand(3, 1, 8, 8)
    seen = cuau_figures.representations(module, ["hidden", "head"], x)
    assert {name: tuple(rows.shape) for name, rows in seen.items()} == {"hidden": (3, 5), "head": (3, 10)}
    torch.testing.assert_close(seen["head"], module(x))
    assert not any(part._forward_hooks for part in module.modules())


def test_label_distance_by_hand() -> None:
    x = torch.zeros(4, 1)
    labels = {"even": torch.tensor([0, 0, 1, 1]), "one": torch.tensor([0, 0, 0, 0])}
    federation = Federation.from_tensors({name: {"train": (x, y), "test": (x, y)} for name, y in labels.items()})
    # Everybody: (3/4, 1/4). even: |1/2 − 3/4| + |1/2 − 1/4|; one: |1 − 3/4| + |0 − 1/4|.
    assert label_distance(federation) == {"even": 0.5, "one": 0.5}
    lone = Federation.from_tensors({"only": {"train": (x, labels["even"]), "test": (x, labels["even"])}})
    assert label_distance(lone) == {"only": 0.0}


def test_the_recipes_global_test_set_is_the_sources() -> None:
    federation = find_scenario("digits-dirichlet-quarters").build(clients=8, samples=40, seed=0)
    run, _ = assemble(SMALL.config(study_in(Path("unused")), 0), method=FedAvg(), federation=federation)
    tested = sum(len(client.test) for client in federation)
    accuracy = global_accuracy(run.server.initial_model(), run.engine)
    assert accuracy * tested == pytest.approx(round(accuracy * tested))
    run.engine.close()
