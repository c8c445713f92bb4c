"""Nodes that read their own tables reach the model of a simulation, and nothing leaves them but statistics."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

import coterie
from coterie.errors import DataError, RunError
from coterie.federation.tables import Table
from coterie.flower import InProcessGrid, client_app
from coterie.flower.server import run_on
from coterie.flower.tables import TableOptions, agree, read_site, report_of

OPTIONS: dict[str, Any] = {"method": "fedavg", "model": "logistic", "rounds": 3, "lr": 0.5, "seed": 3}
SECRET = "Kowalski"
"""A cell that must not leave: it is in a column that is dropped."""


def write_sites(folder: Path, label: str = "ill", sites: Sequence[str] = ("north", "south", "west")) -> Path:
    """One CSV file per site: numbers, categories, gaps, a name, and a label of classes and one of quantities."""
    folder.mkdir(parents=True, exist_ok=True)
    for place, site in enumerate(sites):
        rng = np.random.default_rng(place)
        with open(folder / f"{site}.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["name", "age", "ward", "dose", label])
            for row in range(40 + 10 * place):
                age = float(rng.normal(50 + 5 * place, 10))
                ward = ["a", "b", f"only {site}"][int(rng.integers(3))]
                dose = "" if row % 7 == 0 else f"{rng.normal(2, 1):.3f}"
                target = f"{age * 2.5 + rng.normal():.4f}" if label == "cost" else ("yes" if age > 52 else "no")
                table.writerow([f"{SECRET} {row}", f"{age:.4f}", ward, dose, target])
    return folder


def grid_on(folder: Path, options: dict[str, Any], **more: Any) -> InProcessGrid:
    configs = [{"client": file.stem, "data": str(file)} for file in sorted(folder.glob("*.csv"))]
    return InProcessGrid(client_app(options["model"]), node_configs=configs, run_config=options, **more)


@pytest.mark.parametrize(
    ("label", "more"),
    [("ill", {"metrics": "auc"}), ("cost", {"metrics": "mae", "model": "linear", "lr": 0.1})],
)
def test_nodes_reach_the_model_and_the_scores_of_the_simulation(
    tmp_path: Path, label: str, more: dict[str, Any]
) -> None:
    folder = write_sites(tmp_path / "sites", label)
    options = OPTIONS | more
    tables = {"label": label, "drop": "name"}
    simulated = coterie.run(data=str(folder), **options, **tables)
    result = run_on(grid_on(folder, options | tables), {**options, **tables, "min_nodes": 3})
    assert result.table is not None
    assert simulated.table is not None
    assert result.table.features == simulated.table.features
    assert result.table.label_mean == pytest.approx(simulated.table.label_mean, rel=1e-12)
    [ours], [theirs] = result.models, simulated.models
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    scores, expected = result.history[-1].metrics, simulated.history[-1].metrics
    assert scores.keys() == expected.keys()
    for name, spread in expected.items():
        assert (scores[name].mean is None) == (spread.mean is None), name
        assert spread.mean is None or scores[name].mean == pytest.approx(spread.mean, rel=1e-4), name


def test_what_leaves_a_node_is_its_statistics(tmp_path: Path) -> None:
    folder = write_sites(tmp_path / "sites", "cost")
    options = OPTIONS | {"label": "cost", "drop": "name", "model": "linear"}
    sent: list[str] = []

    def listen(reply: Message) -> Message:
        sent.extend(str(value) for record in reply.content.config_records.values() for value in record.values())
        return reply

    run_on(grid_on(folder, options, tamper=listen), options | {"min_nodes": 3, "rounds": 1})
    reports = [json.loads(text) for text in sent if text.startswith("{")]
    assert len(reports) == 3
    for report in reports:
        assert set(report) == {"client", "names", "label", "site"}
        assert set(report["site"]["columns"]) == {"age", "ward", "dose"}
        assert set(report["site"]["columns"]["age"]) == {"count", "mean", "m2", "missing"}
        assert set(report["site"]["columns"]["ward"]["counts"]) <= {"a", "b", f"only {report['client']}"}
        assert report["label"]["values"] == []  # quantities stay
    with open(folder / "north.csv", newline="") as file:
        rows = list(csv.reader(file))[1:]
    everything = " ".join(sent)
    assert SECRET not in everything
    assert str(folder) not in everything
    assert not any(row[1] in everything or row[4] in everything for row in rows)


def test_a_table_without_a_column_of_the_others_is_named(tmp_path: Path) -> None:
    folder = write_sites(tmp_path / "sites")
    text = (folder / "south.csv").read_text().replace("dose", "dosis")
    (folder / "south.csv").write_text(text)
    options = OPTIONS | {"label": "ill", "drop": "name"}
    with pytest.raises(DataError, match=r"south: no column 'dose', which north has"):
        run_on(grid_on(folder, options), options | {"min_nodes": 3})


def test_a_node_that_cannot_read_its_table_says_why(tmp_path: Path) -> None:
    folder = write_sites(tmp_path / "sites")
    options = OPTIONS | {"label": "sick", "drop": "name"}
    with pytest.raises(RunError, match=r"0 nodes described their tables .* no column 'sick' for the label"):
        run_on(grid_on(folder, options), options | {"min_nodes": 3, "wait": 0.2})


def test_a_run_on_tables_resumes_with_the_preprocessing_it_began_with(tmp_path: Path) -> None:
    folder = write_sites(tmp_path / "sites")
    options = OPTIONS | {"label": "ill", "drop": "name", "rounds": 4}

    class Stop(coterie.Callback):
        def on_round(self, record: Any) -> None:
            if record.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_on(grid_on(folder, options), options | {"min_nodes": 3}, tmp_path / "run", callbacks=[Stop()])
    agreed = Table.from_json(json.loads((tmp_path / "run" / "flower.json").read_text())["table"])
    (folder / "late.csv").write_text((folder / "west.csv").read_text())  # a fourth node changes nothing agreed
    result = run_on(grid_on(folder, options), options | {"min_nodes": 3}, tmp_path / "run")
    assert result.table == agreed
    assert len(result.history) == 4


@pytest.mark.parametrize(
    ("labels", "task", "found"),
    [
        ([[0, 1, 1], [1, 0, 0]], None, ("0", "1")),
        ([[0.5, 1.5, 2.0], [1, 2, 3]], None, ()),
        ([[1, 2, 3], [4, 5, 6]], "regression", ()),
        ([list(range(30)), list(range(30))], "classification", tuple(map(str, range(30)))),
        ([["no", "yes", "no"], [0, 1, 1]], None, ("0", "1", "no", "yes")),
    ],
)
def test_classes_are_those_that_are_found_with_all_labels_at_hand(
    tmp_path: Path, labels: list[list[Any]], task: Any, found: tuple[str, ...]
) -> None:
    for site, own in enumerate(labels):
        rows = [f"{i},{value}" for i, value in enumerate(own * 5)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    options = TableOptions("y", task=task)
    files = sorted(tmp_path.glob("*.csv"))
    reports = [report_of(read_site(file, file.stem, options), options) for file in files]
    assert agree(reports, options).label_names == found
    together = coterie.Federation.from_tables(str(tmp_path), label="y", task=task)
    assert tuple(together.label_names or ()) == found


def test_whole_numbers_that_may_be_quantities_stay_and_are_asked_about(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},{i}\n" for i in range(40)))
    options = TableOptions("y")
    report = report_of(read_site(tmp_path / "a.csv", "a", options), options)
    assert report.label.values == ()
    with pytest.raises(DataError, match="classes or quantities"):
        agree([report, report], options)
