"""Natural federations from small files in the published formats: hospitals with missing values, schools as clients."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

import coterie
from coterie.data.scenarios import find_scenario
from coterie.data.sources import load_table_source
from coterie.errors import ConfigError, DataError

STATIONS = ("Changping", "Dongsi", "Gucheng", "Shunyi")
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


def write_air(folder: Path, days: int = 56) -> None:
    """UCI's form: a header, texts in quotes, NA where nothing was measured."""
    (folder / "beijing-air").mkdir(exist_ok=True)
    random = np.random.default_rng(2)
    for station in STATIONS:
        lines = [
            '"No","year","month","day","hour","PM2.5","PM10","SO2","NO2","CO","O3","TEMP","PRES","DEWP","RAIN","wd",'
            '"WSPM","station"'
        ]
        for number in range(24 * days):
            day = date(2013, 3, 1) + timedelta(days=number // 24)
            particles = "NA" if number % 10 == 3 else random.integers(3, 300)
            coarse = "NA" if number % 7 == 0 else random.integers(5, 400)
            fields = [
                number + 1,
                day.year,
                day.month,
                day.day,
                number % 24,
                particles,
                coarse,
                4,
                7,
                300,
                77,
                -0.7,
                1023,
            ]
            lines.append(",".join(map(str, [*fields, -18.8, 0, '"NNW"' if number % 2 else "NA", 4.4, f'"{station}"'])))
        (folder / f"beijing-air/PRSA_Data_{station}_20130301-20170228.csv").write_text("\n".join(lines) + "\n")


def test_air_trains_on_the_first_weeks_and_is_tested_on_the_last_quarter(tmp_path: Path) -> None:
    write_air(tmp_path)
    tables = load_table_source("air", tmp_path)
    assert tuple(tables) == STATIONS
    table = tables["Dongsi"]
    assert table.rows == 24 * 56 - len(range(3, 24 * 56, 10))  # hours without PM2.5 are left out
    assert np.exp(table.columns["log PM2.5"].numbers) == pytest.approx(
        np.exp(table.columns["log PM2.5"].numbers).round()
    )
    assert np.unique(table.columns["week"].numbers).tolist() == list(range(8))
    federation = find_scenario("air").build(clients=4, samples=10**6, data_dir=tmp_path)
    assert federation.groups == [1, 0, 0, 1]
    assert federation.table is not None
    names = federation.table.features
    assert {"PM10", "PM10 missing", "wd=NNW", "wd missing", "hour=23", "month=4"} <= set(names)
    assert not {"week", "PM2.5", "log PM2.5", "year", "day", "station"} & set(names)
    for client in federation:
        assert client.train.block is not None
        assert client.validation.block is not None
        weeks = client.train.block.unique().tolist(), client.validation.block.unique().tolist()
        assert sorted([*weeks[0], *weeks[1]]) == list(range(6))
        assert len(weeks[1]) == 1
        own = tables[client.id].columns
        early = own["week"].numbers < 6
        known = torch.cat([client.train.y, client.validation.y])
        assert sorted(known.tolist()) == pytest.approx(np.sort(own["log PM2.5"].numbers[early]).tolist())
        assert client.test.y.tolist() == pytest.approx(own["log PM2.5"].numbers[~early].tolist())
    fewer = find_scenario("air").build(clients=2, samples=100, data_dir=tmp_path)
    assert all(80 <= len(client.train) <= 111 for client in fewer)
    with pytest.raises(ConfigError, match="groups=3: air has 2 hidden groups"):
        find_scenario("air").build(clients=4, groups=3, data_dir=tmp_path)
    options = {
        "scenario": "air",
        "clients": 4,
        "rounds": 4,
        "lr": 0.01,
        "workers": 1,
        "data_dir": str(tmp_path),
        "metrics": "rmse",
    }
    result = coterie.run("fedavg", **options)
    assert result.history[-1].loss.mean < result.history[0].loss.mean


def write_landmine(folder: Path, fields: int = 29) -> None:
    """Duke's form: cell arrays of 9 features and of labels."""
    (folder / "landmine").mkdir(exist_ok=True)
    random, cells = (
        np.random.default_rng(3),
        {"feature": np.empty((1, fields), object), "label": np.empty((1, fields), object)},
    )
    for i in range(fields):
        label = (np.arange(40 + i) % 8 == 0).astype(np.uint8)
        features = random.normal(size=(40 + i, 9))
        features[:, 0] += 4.0 * label if i < 15 else -4.0 * label
        cells["feature"][0, i], cells["label"][0, i] = features, label[:, None]
    savemat(folder / "landmine/LandmineData.mat", cells)


def test_minefields_and_their_two_terrains(tmp_path: Path) -> None:
    write_landmine(tmp_path)
    federation = find_scenario("landmine").build(data_dir=tmp_path)
    assert federation.ids == tuple(f"field-{i:02d}" for i in range(1, 30))
    assert federation.groups == [0] * 15 + [1] * 14
    assert (federation.input_shape, federation.label_names) == ((9,), ("no", "yes"))
    first = federation["field-01"]
    labels = torch.cat([first.train.y, first.validation.y, first.test.y])
    assert (len(labels), int(labels.sum())) == (40, 5)
    assert first.train.x[first.train.y == 1, 0].mean() > 1  # in the first terrain, mines are where it is high
    last = federation["field-29"]
    assert last.train.x[last.train.y == 1, 0].mean() < -1
    options = {"scenario": "landmine", "rounds": 5, "workers": 1, "data_dir": str(tmp_path), "metrics": "auc"}
    assert coterie.run("local", **options).test["auc"].mean > coterie.run("fedavg", **options).test["auc"].mean


def test_air_and_minefields_that_are_something_else_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"PRSA_Data_\*\.csv is missing: run `coterie data fetch air`"):
        load_table_source("air", tmp_path)
    with pytest.raises(DataError, match=r"LandmineData\.mat is missing: .*Duke"):
        load_table_source("landmine", tmp_path)
    write_air(tmp_path, days=2)
    path = tmp_path / "beijing-air/PRSA_Data_Shunyi_20130301-20170228.csv"
    whole = path.read_text()
    for text, why in (
        (whole + "1,2\n", "not a header and rows of as many values"),
        (whole.replace("PM2.5", "PM25"), "no column 'PM2.5'"),
        (whole.replace(",300,", ",much,"), "not a number or NA"),
        ("", "not a header"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=why):
            load_table_source("air", tmp_path)
    write_landmine(tmp_path, fields=28)
    with pytest.raises(DataError, match="expected those of 29 fields"):
        load_table_source("landmine", tmp_path)
    file = tmp_path / "landmine/LandmineData.mat"
    for content in (b"", b"no MATLAB file", file.read_bytes()[:3000]):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"LandmineData\.mat: not a "):
            load_table_source("landmine", tmp_path)
