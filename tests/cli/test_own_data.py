"""The command on data of one's own: tables and images, trained, resumed and deployed."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie as library
from coterie.cli import main
from coterie.federation.tables import Table
from coterie.runs import loop
from coterie.runs.folder import RunFolder
from tables import write_hospitals

Called = Callable[..., tuple[int, str, str]]
SHORT = ("--model", "logistic", "--rounds", "3", "--workers", "1", "--quiet")
TABLES = ("--data", "sites/*.csv", "--label", "y")


@pytest.fixture
def coterie(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Called:
    """Run the command in a folder with twelve hospitals' tables: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    write_hospitals(Path("sites"), 1, share=0.1)

    def call(*words: object) -> tuple[int, str, str]:
        code: Any = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def one_line(result: tuple[int, str, str]) -> str:
    code, _, err = result
    assert code == 2, err
    assert len(err.splitlines()) == 1, err
    return err


def test_a_run_on_tables_keeps_how_they_became_inputs(coterie: Called) -> None:
    code, _, err = coterie("run", "--method", "fedavg", *TABLES, *SHORT, "--out", "run")
    assert (code, err) == (0, "")
    table = Table.from_json(RunFolder(Path("run")).read_json("table.json"))
    assert table == library.Federation.from_tables("sites/*.csv", "y").table
    assert RunFolder(Path("run")).read_json("model.json")["label_names"] == ["no", "yes"]
    inputs, labels = table.transform("sites/hospital-03.csv")
    assert labels is not None
    outputs = library.load("run").model_of("hospital-03")(inputs)
    assert outputs.shape == (len(labels), 2)


def test_a_killed_run_on_tables_resumes_with_the_same_tables_only(
    coterie: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = library.run("fedavg", data="sites/*.csv", label="y", model="logistic", rounds=3, workers=1)

    class Killed(BaseException):
        pass

    class KillAfter:
        def on_start(self, run: Any, done: int) -> None: ...

        def on_event(self, t: int, event: Any) -> None: ...

        def on_end(self, result: Any) -> None: ...

        def on_round(self, record: Any) -> None:
            if record.round == 2:
                raise Killed

    monkeypatch.setattr(loop, "checkpoint_pause", lambda cost: 0.0)
    options: dict[str, Any] = {"data": "sites/*.csv", "label": "y", "model": "logistic", "rounds": 3, "workers": 1}
    with pytest.raises(Killed):
        library.run("fedavg", **options, out="run", callbacks=[KillAfter()])
    rows = Path("sites/hospital-05.csv").read_text()
    Path("sites/hospital-05.csv").write_text(rows.replace("icu", "er"))
    assert "the run was begun with federation=" in one_line(coterie("resume", "run"))
    Path("sites/hospital-05.csv").write_text(rows)
    assert coterie("resume", "run", "--quiet") == (0, "", "")
    assert library.load("run").summary.loss == whole.summary.loss


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--data", "sites/*.csv"],
            "are tables: give --label, the column to predict (label=… in Python), of age, press",
        ),
        (["--data", "sites/*.csv", "--label", "outcome"], "hospital-01.csv: no column 'outcome' for the label"),
        (["--data", "sites/a.csv", "sites/b.csv", "--label", "y"], "put the pattern into quotes"),
        (["--data", "sites/*.txt", "--label", "y"], "no table found there"),
        (["--label", "y"], "label='y' goes with data: name your data too"),
        (["--data", "sites/*.csv", "--drop", "age"], "drop goes with tables, which need label"),
        ([*TABLES, "--image-size", "8"], "label is for tables and image_size for images"),
        ([*TABLES, "--regression"], "label 'y' holds 'yes', which is no number"),
        ([*TABLES, "--client-column", "sit"], "no column 'sit' for the client"),
        ([*TABLES, "--clients", "3"], "clients=3 goes with a scenario"),
    ],
)
def test_what_is_wrong_with_tables_is_said_in_one_line(coterie: Called, words: list[str], said: str) -> None:
    assert said in one_line(coterie("run", "--rounds", "1", *words))
    assert not Path("runs").exists()


def test_a_refusal_of_tables_names_the_command_that_finds_all_faults(coterie: Called) -> None:
    Path("sites/hospital-01.csv").write_text("")
    said = one_line(coterie("run", "--rounds", "1", *TABLES))
    assert said.endswith("all problems at once: coterie check 'sites/*.csv' --label y\n")


def test_options_of_tables_reach_the_federation(coterie: Called) -> None:
    words = ("--drop", "ward,smoker", "--categorical", "age", "--label", "crp", "--regression")
    for file in Path("sites").glob("*.csv"):
        file.write_text(file.read_text().replace("\n,", "\n1.0,").replace(",,", ",1.0,").replace(",,", ",2.0,"))
    code, _, err = coterie(
        "run", "--method", "fedavg", "--data", "sites/*.csv", *words, *SHORT, "--lr", "1e-4", "--out", "r"
    )
    assert (code, err) == (0, "")
    table = Table.from_json(RunFolder(Path("r")).read_json("table.json"))
    assert table.label_names == ()
    assert [(column.name, column.kind) for column in table.columns] == [
        ("age", "category"), ("pressure", "number"), ("glucose", "number"), ("y", "category"),
    ]  # fmt: skip


def test_diagnose_takes_tables(coterie: Called) -> None:
    for number in range(5, 13):
        Path(f"sites/hospital-{number:02d}.csv").unlink()
    code, out, err = coterie("diagnose", *TABLES, "--model", "logistic", "--rounds", "5", "--workers", "1", "--quiet")
    assert (code, err) == (0, "")
    assert out.strip()


def test_advise_takes_tables_and_names_the_next_command(coterie: Called) -> None:
    code, out, err = coterie("advise", *TABLES, "--model", "logistic", "--rounds", "20", "--workers", "1", "--quiet")
    assert (code, err) == (0, "")
    words = shlex.split(out.strip().splitlines()[-1])
    assert words[:3] == ["coterie", "run", "--method"]
    assert set(TABLES) <= set(words)
    code, _, err = coterie(*words[1:], "--quiet")
    assert (code, err) == (0, "")


def test_a_deployment_leaves_tables_where_they_lie(coterie: Called) -> None:
    pytest.importorskip("flwr", reason="needs coterie[flower]")
    code, _, err = coterie("deploy", "--out", "app", "--model", "logistic", "--rounds", "2", *TABLES)
    assert (code, err) == (0, "")
    assert not Path("app/clients").exists()
    guide = Path("app/README.md").read_text()
    for file in Path("sites").glob("*.csv"):
        assert f"data='{file.absolute()}'" in guide
    settings = Path("app/app/pyproject.toml").read_text()
    assert 'label = "y"' in settings
    assert "sites" not in settings


def test_a_deployment_for_tables_that_are_elsewhere(coterie: Called) -> None:
    pytest.importorskip("flwr", reason="needs coterie[flower]")
    words = ("--model", "logistic", "--rounds", "2", "--label", "y", "--drop", "name", "--nodes", "3")
    assert coterie("deploy", "--out", "app", *words)[0] == 0
    settings = tomllib.loads(Path("app/app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (settings["label"], settings["drop"], settings["min-nodes"]) == ("y", "name", 3)
    assert "/path/of/its-table.csv" in Path("app/README.md").read_text()


def test_a_deployment_of_one_table_writes_the_inputs_of_each_client(coterie: Called) -> None:
    pytest.importorskip("flwr", reason="needs coterie[flower]")
    rows = [f"{'ab'[i % 2]},{i * i % 7},{'no' if i % 3 else 'yes'}" for i in range(40)]
    Path("all.csv").write_text("\n".join(["site,x,y", *rows]) + "\n")
    words = ("--data", "all.csv", "--label", "y", "--client-column", "site", "--model", "logistic", "--rounds", "2")
    code, _, err = coterie("deploy", "--out", "app", *words)
    assert (code, err) == (0, "")
    expected = library.Federation.from_tables("all.csv", "y", client_column="site")
    for client in expected:
        with np.load(f"app/clients/{client.id}.npz") as arrays:
            np.testing.assert_array_equal(arrays["x_train"], client.train.x.numpy())
            np.testing.assert_array_equal(arrays["y_test"], client.test.y.numpy())
    assert Table.from_json(json.loads(Path("app/table.json").read_text())) == expected.table


def test_labels_of_a_folder_of_arrays_reach_the_nodes_counted_from_0(coterie: Called) -> None:
    pytest.importorskip("flwr", reason="needs coterie[flower]")
    Path("arrays").mkdir()
    for name in "ab":
        np.savez(f"arrays/{name}.npz", x=np.ones((20, 2), np.float32), y=np.arange(20) % 2 + 1)
    assert coterie("deploy", "--out", "app", "--model", "logistic", "--rounds", "2", "--data", "arrays")[0] == 0
    with np.load("app/clients/a.npz") as arrays:
        assert set(arrays["y_train"].tolist()) == {0, 1}
    assert "classes = 2" in Path("app/app/pyproject.toml").read_text()


def test_images_are_trained_on(coterie: Called) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs coterie[images]")
    for client in ("ann", "bob"):
        for kind in ("cat", "dog"):
            place = Path("photos", client, kind)
            place.mkdir(parents=True)
            for i in range(6):
                image.new("RGB", (6, 6), (i, 0, 0)).save(place / f"{i}.png")
    Path("photos/README.txt").write_text("Taken in May.")
    words = ("--data", "photos", "--image-size", "4", "--image-colour", "grey")
    assert coterie("run", "--method", "fedavg", *words, *SHORT, "--out", "run") == (0, "", "")
    assert RunFolder(Path("run")).read_json("model.json")["input_shape"] == [1, 4, 4]
