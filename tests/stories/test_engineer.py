"""An engineer with twelve hospitals' tables: from a folder of CSV files to predictions of the exported model.

Once in 25 lines of Python, and once more in commands alone. AUC, Adam and early stopping are used on the way.
"""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.cli.main import main
from tables import LABEL, write_hospitals

PYTHON = """
import csv, json
from pathlib import Path
import torch
import coterie

result = coterie.run(
    "ifca:k=3,init=k-means++", data="sites/*.csv", label="y", model="mlp:hidden=32", rounds=40,
    optimizer="adam", lr=0.01, metrics=["auc"], patience=5, out="runs/hospitals",
)
auc = result.summary.metrics["auc"]

run = coterie.load("runs/hospitals")
later = run.evaluate("march/hospital-01.csv", client="hospital-01")
predictions = run.predict("march/hospital-01.csv", client="hospital-01")
drift = run.drift("hospital-01", "march/hospital-01.csv")
cluster = run.assign("march/hospital-04.csv")["hospital-04"]
run.export("model.ts", client="hospital-01")

columns = json.loads(Path("model.ts.json").read_text())["inputs"]["columns"]
with open("march/hospital-01.csv") as file:
    cells = [[row[column] for column in columns] for row in csv.DictReader(file)]
labels, probabilities = torch.jit.load("model.ts")(cells)
"""
COMMANDS = """
coterie run --method ifca:k=3,init=k-means++ --data 'sites/*.csv' --label y --model mlp:hidden=32 --rounds 40 \
--optimizer adam --lr 0.01 --metrics auc --patience 5 --out runs/hospitals
coterie evaluate runs/hospitals march/hospital-01.csv --client hospital-01
coterie predict runs/hospitals march/hospital-01.csv --client hospital-01 --out predictions.csv
coterie assign runs/hospitals march/hospital-01.csv --client hospital-01
coterie assign runs/hospitals march/hospital-04.csv
coterie export runs/hospitals model.onnx --client hospital-01
"""


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The tables to train on in `sites`, those of a later month in `march`, and each hospital's hidden group."""
    monkeypatch.chdir(tmp_path)
    groups = write_hospitals(Path("sites"), seed=0, share=0.3)
    assert write_hospitals(Path("march"), seed=1, share=0.3) == groups
    return groups


def outcomes(path: str) -> list[str]:
    return [row[LABEL] for row in csv.DictReader(Path(path).read_text().splitlines())]


def test_in_python(hospitals: dict[str, int]) -> None:
    lines = [line for line in PYTHON.splitlines() if line.strip()]
    assert len(lines) <= 25
    found: dict[str, object] = {}
    exec(PYTHON, found)
    result, run = found["result"], found["run"]
    assert isinstance(result, coterie.Result)
    assert isinstance(run, coterie.Result)
    assert result.summary.rounds < 40  # it stopped early
    auc = result.summary.metrics["auc"].mean
    assert auc is not None
    assert auc > 0.85
    clusters = {row.client: row.cluster for row in run.clients}
    assert len({(hospitals[client], cluster) for client, cluster in clusters.items()}) == 3  # one for each rule
    later, predictions = found["later"], found["predictions"]
    assert isinstance(later, dict)
    assert isinstance(predictions, np.ndarray)
    assert later["auc"] > 0.85
    truth = outcomes("march/hospital-01.csv")
    assert set(predictions) == {"yes", "no"}
    assert np.mean(predictions == truth) == pytest.approx(later["accuracy"])
    assert found["labels"] == predictions.tolist()  # the exported model says the same
    assert "hospital-01 fits cluster" in str(found["drift"])
    assert found["cluster"] == clusters["hospital-04"]  # its rows of another month belong to its own group


def test_in_commands(hospitals: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for line in COMMANDS.strip().splitlines():
        words = shlex.split(line)
        main(words[1:])
        said[words[1] + (" --client" if "--client" in words else "")] = capsys.readouterr().out
    run = coterie.load("runs/hospitals")
    assert run.summary.rounds < 40
    scores = dict(line.split() for line in said["evaluate --client"].splitlines()[1:])
    assert float(scores["auc"]) > 0.85
    rows = [row["prediction"] for row in csv.DictReader(Path("predictions.csv").read_text().splitlines())]
    assert rows == run.predict("march/hospital-01.csv", client="hospital-01").tolist()
    assert said["assign --client"].startswith("hospital-01 fits cluster")
    assert said["assign"].splitlines()[1].split()[:2] == ["hospital-04", str(run.record_of("hospital-04").cluster)]
    runtime = pytest.importorskip("onnxruntime")
    columns = json.loads(Path("model.onnx.json").read_text())["inputs"]["columns"]
    patients = csv.DictReader(Path("march/hospital-01.csv").read_text().splitlines())
    cells = np.array([[patient[column] for column in columns] for patient in patients], dtype=object)
    labels, _ = runtime.InferenceSession("model.onnx").run(None, {"cells": cells})
    assert labels.tolist() == rows
