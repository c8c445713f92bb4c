"""Regression on tables: trained on scaled targets, predicted, measured and reported in the targets' units."""

from __future__ import annotations

import csv
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

import coterie
from coterie.cli.main import main
from coterie.federation.tables import Table
from coterie.runs.records import Spread
from coterie.runs.target_scaling import TargetScaling

LABEL = "pressure"


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six hospitals in two groups, with targets around 1400 that deviate by 40."""
    place, generator = tmp_path_factory.mktemp("sites"), np.random.default_rng(0)
    for i in range(6):
        z = generator.normal(size=(60 + 20 * i, 3))
        weights = [30.0, -20.0, 10.0] if i < 3 else [-30.0, 20.0, 10.0]
        y = 1400 + z @ weights + 5 * generator.normal(size=len(z))
        with (place / f"site{i}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "bmi", "dose", LABEL])
            writer.writerows([*row, target] for row, target in zip(z * [10, 4, 100] + [50, 25, 500], y, strict=True))
    return place


def targets(file: Path) -> np.ndarray:
    with file.open() as opened:
        return np.array([float(row[LABEL]) for row in csv.DictReader(opened)])


@pytest.fixture(scope="module")
def run(sites: Path, tmp_path_factory: pytest.TempPathFactory) -> coterie.Result:
    place = tmp_path_factory.mktemp("run") / "ifca"
    how = {"label": LABEL, "rounds": 30, "metrics": "mae,rmse,r2", "workers": 1}
    return coterie.run("ifca:k=2", data=sites, out=place, **how)  # type: ignore[arg-type]


def test_the_command_that_advise_prints_learns(sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["advise", "--data", str(sites), "--label", LABEL])
    command = capsys.readouterr().out.strip().splitlines()[-1].strip()
    assert command.startswith("coterie run")
    main([*shlex.split(command)[1:], "--quiet", "--metrics", "r2", "--out", str(tmp_path / "run")])
    assert coterie.load(tmp_path / "run").summary.metrics["r2"].mean > 0.8


def test_predictions_and_metrics_are_in_the_targets_units(run: coterie.Result, sites: Path) -> None:
    again = coterie.load(run.path)
    for result in (run, again):
        y, predicted = targets(sites / "site1.csv"), result.predict(sites / "site1.csv", client="site1")
        assert np.abs(predicted - y).mean() < 15
        found = result.evaluate(sites / "site1.csv", client="site1")
        assert found["mae"] == pytest.approx(np.abs(predicted - y).mean(), rel=1e-3)
        assert found["loss"] == pytest.approx(np.square(predicted - y).mean(), rel=1e-3)
    federation = coterie.Federation.from_tables(sites, LABEL)
    for row in run.clients:
        test = federation[row.client].test
        error = torch.as_tensor(run.predict(test.x, client=row.client)) - test.y
        assert row.loss == pytest.approx(float(error.square().mean()), rel=1e-3)
        assert row.metrics["mae"] == pytest.approx(float(error.abs().mean()), rel=1e-3)
        assert row.metrics["rmse"] == pytest.approx(float(error.square().mean().sqrt()), rel=1e-3)
    assert 10 < run.history[-1].clusters[0].train_loss < 200  # the noise alone has a variance of 25


@pytest.mark.parametrize("loss", ["mae", "huber", None])
def test_a_metric_and_a_loss_of_ones_own_agree_with_evaluate(sites: Path, loss: str | None) -> None:
    federation = coterie.Federation.from_tables(sites, LABEL)

    def worst(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).abs().max()

    found = coterie.run("fedavg", federation, rounds=3, loss=loss, metrics={"worst": worst}, workers=1)
    for row in found.clients:
        test = federation[row.client].test
        again = found.evaluate(test, client=row.client, metrics={"worst": worst})
        assert again["loss"] == pytest.approx(row.loss, rel=1e-4)
        assert again["worst"] == pytest.approx(row.metrics["worst"], rel=1e-4)


def test_newcomers_drift_and_export_know_the_units(run: coterie.Result, sites: Path, tmp_path: Path) -> None:
    of = {row.client: row.cluster for row in run.clients}
    assert of["site0"] != of["site5"]
    assert run.assign(sites / "site5.csv") == {"site5": of["site5"]}
    assert not run.drift("site0", sites / "site0.csv").elsewhere
    assert run.drift("site0", sites / "site5.csv").elsewhere
    module = torch.jit.load(str(run.export(tmp_path / "m.pts", client="site0", format="torchscript")))
    assert run.table is not None
    raw = run.table.read(sites / "site0.csv")
    cells = [list(row) for row in zip(*(raw.columns[c.name].cells or () for c in run.table.columns), strict=True)]
    assert np.allclose(module(cells).detach(), run.predict(sites / "site0.csv", client="site0"), rtol=1e-5)
    state = torch.load(run.export(tmp_path / "m.pt", client="site0"))
    assert not any(name.startswith("trained.") for name in state)


def test_targets_are_scaled_as_the_inputs_are(sites: Path, run: coterie.Result) -> None:
    assert run.path is not None
    table = Table.load(run.path / "table.json")
    train = torch.cat([client.train.y for client in coterie.Federation.from_tables(sites, LABEL)]).double()
    assert table.label_mean == pytest.approx(float(train.mean()), rel=1e-5)
    assert table.label_scale == pytest.approx(float(train.std(correction=0)), rel=1e-4)
    plain = coterie.Federation.from_tables(sites, LABEL, scale=False).table
    assert plain is not None
    assert (plain.label_mean, plain.label_scale) == (0.0, 1.0)


def test_the_worst_tenth_of_a_loss_is_the_highest(run: coterie.Result) -> None:
    losses = sorted(row.loss for row in run.clients if row.loss is not None)
    assert run.summary.loss.worst10 == losses[-1]
    assert run.summary.loss.best10 == losses[0]
    assert run.summary.metrics["r2"].worst10 == min(row.metrics["r2"] for row in run.clients)
    assert Spread.of([1.0, 2.0, 3.0]).worst10 == 1.0


def test_the_report_of_an_unfinished_run_says_its_loss_so_far(run: coterie.Result, tmp_path: Path) -> None:
    from coterie_views.report.page import make_report

    assert run.path is not None
    place = shutil.copytree(run.path, tmp_path / "run")
    for name in ("summary.json", "clients.json"):
        (place / name).unlink()
    assert f"The mean loss is {run.summary.loss.mean:.4g} so far." in make_report(place)


def test_a_comparison_of_regressions_is_reported_like_any_other(sites: Path, tmp_path: Path) -> None:
    from coterie_views.report.page import make_report

    how = {"label": LABEL, "rounds": 10, "workers": 1, "out": tmp_path / "both"}
    found = coterie.compare(["fedavg", "ifca:k=2"], data=str(sites), **how)  # type: ignore[arg-type]
    page = make_report(tmp_path / "both")
    assert "ifca:k=2 has the best mean loss" in page
    assert "does not tell it from" not in page
    for words in ("worst 10\u00a0%", "Loss over rounds", "How evenly clients are served", "Who gained over one model"):
        assert words.replace("\u00a0", " ") in page.replace("\u00a0", " ")
    assert "The best of the others in detail: ifca:k=2" in page
    folders = {row["method"]: tmp_path / "both" / row["folders"]["0"] for row in found.table["rows"]}
    report = make_report(folders["ifca:k=2"], folders["fedavg"])
    assert "Against fedavg, 6 of 6 clients gained and 0 lost" in report
    assert "Each client against fedavg" in report


def test_scaled_clients_keep_the_blocks_of_their_samples() -> None:
    generator = np.random.default_rng(0)
    rows = {"x": generator.normal(size=24), "day": np.repeat(np.arange(6), 4), LABEL: generator.normal(1400, 40, 24)}
    tables = {name: pandas.DataFrame(rows) for name in ("ann", "bob")}
    given = coterie.Federation.from_tables(tables, LABEL, blocks="day")
    trained = TargetScaling.of(given.table).federation(given)
    for before, after in zip(given, trained, strict=True):
        assert not torch.equal(before.train.y, after.train.y)
        assert before.train.block is not None
        assert after.train.block is not None
        assert torch.equal(before.train.block, after.train.block)
