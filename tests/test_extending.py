"""Scenarios and data sets of an installed package, as docs/extending.md prints them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.cli import main
from coterie.data import find_scenario, list_scenarios, load_source
from coterie.errors import ConfigError, DataError
from printed import blocks, entry_points_in, install


@pytest.fixture(autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The printed package, installed."""
    code, toml = blocks("extending.md")[0], blocks("extending.md", "toml")[0]
    place = install(tmp_path_factory.mktemp("site"), "wards", code, entry_points_in(toml))
    monkeypatch.syspath_prepend(str(place))
    yield place
    for name in ("wards", "unsound"):
        sys.modules.pop(name, None)


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """The data folder with the data set's file."""
    draw = np.random.default_rng(0)
    labels = np.arange(240) % 3
    images = draw.normal(scale=0.1, size=(240, 1, 6, 6)).astype(np.float32)
    images[np.arange(240), 0, labels] += 1  # one bright row per class
    folder = tmp_path / "data" / "scans"
    folder.mkdir(parents=True)
    np.savez(folder / "all.npz", x=images[:180], y=labels[:180], x_test=images[180:], y_test=labels[180:])
    return tmp_path / "data"


def test_a_scenario_from_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ["--scenario", "wards", "--method", "ifca:k=2", "--workers", "1", "--quiet", "--out", str(out)]
    main(["run", *words])
    config, summary = (json.loads((out / name).read_text()) for name in ("config.json", "summary.json"))
    assert (config["scenario"], config["model"], config["rounds"], config["lr"]) == ("wards", "logistic", 20, 0.5)
    assert summary["ari"] == 1.0
    main(["scenarios"])
    shown = "".join(capfd.readouterr().out.split())  # a narrow terminal breaks lines
    assert "wards" in shown
    assert {"wards", "scans-rotated", "xor"} <= {scenario.name for scenario in list_scenarios()}


def test_a_run_of_it_resumes(tmp_path: Path) -> None:
    first = coterie.run("fedavg", scenario="wards", rounds=2, workers=1, out=tmp_path / "run")
    assert coterie.resume(tmp_path / "run", workers=1).clusters == first.clusters


def test_a_data_set_and_a_scenario_on_it(scans: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert load_source("scans", scans).x.shape == (180, 1, 6, 6)
    result = coterie.run("fedavg", scenario="scans-rotated", data_dir=scans, model="mlp:hidden=8", rounds=2, workers=1)
    assert len(result.clients) == 8
    main(["data", "list", "--data-dir", str(scans)])
    rows = capfd.readouterr().out.splitlines()
    assert any(row.startswith("scans") and " yes " in row for row in rows)
    main(["data", "list", "--data-dir", str(tmp_path)])
    assert "missing scans/all.npz" in capfd.readouterr().out
    with pytest.raises(DataError, match=r"'scans' is not in .*scans/all.npz is missing: put it there, or name another"):
        load_source("scans", tmp_path)


def test_misspelt_names_are_suggested() -> None:
    with pytest.raises(ConfigError, match="did you mean 'wards'"):
        find_scenario("wardz")
    with pytest.raises(DataError, match="did you mean 'scans'"):
        load_source("scanz")


@pytest.mark.parametrize(
    ("group", "code", "message"),
    [
        ("scenarios", "import nothing_of_that_name", "unsound:THING of the package 'unsound' cannot be loaded"),
        ("scenarios", "1 / 0", r"cannot be loaded \(ZeroDivisionError"),
        ("scenarios", "THING = 3", "of the package 'unsound' is a int, expected a Scenario"),
        ("scenarios", "import wards\nTHING = wards.WARDS", "calls itself 'wards': use one name"),
        ("sources", "THING = 3", "expected a Source or a TextSource"),
    ],
)
def test_an_unsound_package_is_named_and_harms_only_those_who_ask_for_it(
    site: Path, group: str, code: str, message: str
) -> None:
    install(site, "unsound", code, f"[coterie.{group}]\nunsound = unsound:THING\n")
    with pytest.raises(ConfigError, match=message):
        find_scenario("unsound") if group == "scenarios" else load_source("unsound")
    assert find_scenario("wards").clients == 8
    assert load_source("digits").classes == 10
