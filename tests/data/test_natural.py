"""Natural federations from small files in the published formats: hospitals with missing values, schools as clients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.data.scenarios import find_scenario
from coterie.data.sources import load_table_source
from coterie.errors import ConfigError, DataError

HOSPITALS = {"cleveland": 40, "hungarian": 30, "switzerland": 25, "va": 22}


def write_heart(folder: Path) -> None:
    """UCI's form: no header, 14 fields, "?" for a missing value; Cleveland's alone has `ca`, and writes 1.0 for 1."""
    random = np.random.default_rng(0)
    (folder / "heart-disease").mkdir()
    for name, patients in HOSPITALS.items():
        lines = []
        for i in range(patients):
            age, chol = random.integers(30, 75), "?" if i % 5 == 0 else random.integers(150, 300)
            known = (i % 4, (3, 6, 7)[i % 3]) if name == "cleveland" else ("?", "?")
            values = [age, i % 2, 1 + i % 4, 120, chol, 0, i % 3, 150, 0, 2.3, 1 + i % 3, *known]
            if name == "cleveland":
                values = [value if value == "?" else float(value) for value in values]
            lines.append(",".join(map(str, [*values, i % 5])))
        (folder / f"heart-disease/processed.{name}.data").write_text("\n".join(lines) + "\n")


def write_school(folder: Path, schools: dict[str, int]) -> None:
    """Rdatasets' form of mlmRev's Exam."""
    (folder / "schools").mkdir(exist_ok=True)
    random, rows = np.random.default_rng(1), []
    for school, pupils in schools.items():
        for pupil in range(pupils):
            test = random.normal()
            score = 0.5 * test + 0.1 * random.normal()
            rows.append(
                f'"{len(rows) + 1}","{school}",{score:.4f},"mixed",0.1,"mid 50%","top 25%",{test:.4f},'
                f'"{"FM"[pupil % 2]}","Mxd","{pupil}"'
            )
    head = '"rownames","school","normexam","schgend","schavg","vr","intake","standLRT","sex","type","student"'
    (folder / "schools/exam.csv").write_text("\n".join([head, *rows]) + "\n")


def test_the_hospitals_and_what_is_missing_there(tmp_path: Path) -> None:
    write_heart(tmp_path)
    federation = find_scenario("heart-disease").build(data_dir=tmp_path)
    assert federation.ids == tuple(HOSPITALS)
    assert federation.label_names == ("no", "yes")
    for client in federation:
        labels = torch.cat([client.train.y, client.validation.y, client.test.y])
        n = HOSPITALS[client.id]
        assert len(labels) == n
        assert int((labels == 0).sum()) == len(range(0, n, 5))  # diagnosis 0, and 1 to 4 are one class
    assert federation.table is not None
    names = federation.table.features
    assert [name for name in names if name.startswith("cp=")] == ["cp=1", "cp=2", "cp=3", "cp=4"]
    assert {"chol missing", "ca missing", "thal=3", "thal=6", "thal=7", "cp=4"} <= set(names)
    assert federation["va"].train.x[:, names.index("ca missing")].min() == 1
    assert federation["cleveland"].train.x[:, names.index("ca missing")].max() == 0
    assert federation.groups is None


def test_schools_are_clients_if_they_have_enough_pupils(tmp_path: Path) -> None:
    write_school(tmp_path, {"7": 30, "12": 25, "3": 19, "40": 60})
    scenario = find_scenario("exam")
    everybody = scenario.build(clients=3, data_dir=tmp_path)
    assert everybody.ids == ("7", "12", "40")
    assert everybody.regression
    assert everybody.table is not None
    assert "student" not in everybody.table.features
    assert [len(c.train) + len(c.validation) + len(c.test) for c in everybody] == [30, 25, 60]
    assert (
        scenario.build(clients=2, seed=1, data_dir=tmp_path).ids
        == scenario.build(clients=2, seed=1, data_dir=tmp_path).ids
    )
    fewer = scenario.build(clients=3, samples=21, data_dir=tmp_path)
    assert [len(client.train) for client in fewer] == [21, 18, 21]
    with pytest.raises(DataError, match="clients=4: 3 sites of exam have 20 rows"):
        scenario.build(clients=4, data_dir=tmp_path)
    with pytest.raises(ConfigError, match="no hidden groups"):
        scenario.build(clients=3, groups=2, data_dir=tmp_path)
    result = coterie.run("fedavg", scenario="exam", clients=3, rounds=10, workers=1, data_dir=str(tmp_path))
    assert result.history[-1].loss.mean < 0.5 * result.history[0].loss.mean


def test_files_that_are_something_else_are_named(tmp_path: Path) -> None:
    write_heart(tmp_path)
    path = tmp_path / "heart-disease/processed.va.data"
    path.write_text(path.read_text() + "63.0,1.0\n")
    with pytest.raises(DataError, match=r"processed\.va\.data: line 23 is not 13 values and a diagnosis"):
        load_table_source("heart-disease", tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"processed\.va\.data is missing: run `coterie data fetch heart-disease`"):
        load_table_source("heart-disease", tmp_path)
    (tmp_path / "schools").mkdir()
    (tmp_path / "schools/chem97.csv").write_text("school,points\n1,2\n")
    with pytest.raises(DataError, match=r"chem97\.csv: no column 'score'"):
        load_table_source("chem97", tmp_path)
    with pytest.raises(DataError, match="'mnist' is images or text, not tables"):
        load_table_source("mnist", tmp_path)
