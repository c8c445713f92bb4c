"""Where people stumbled: folders that hold a run, Ctrl-C, other working folders, a dict for a federation."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import coterie
from coterie.cli.main import main
from coterie.errors import ConfigError
from coterie.runs.folder import RunFolder

SMALL = ["--scenario", "digits-iid", "--clients", "4"]


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main(arguments)
    return capsys.readouterr().err


def test_two_runs_are_not_begun_inside_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--method", "fedavg", *SMALL, "--rounds", "1", "--quiet", "--out", str(tmp_path / "one")])
    before = sorted(tmp_path.rglob("*"))
    assert "holds a run" in error_of(["run", *SMALL, "--rounds", "1", "--out", str(tmp_path / "one")], capsys)
    assert sorted(tmp_path.rglob("*")) == before


def test_ctrl_c_names_the_folder_to_resume(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    command = [sys.executable, "-c", "from coterie.cli.main import main; main()", "run", "--method", "fedavg"]
    child = subprocess.Popen(
        [*command, *SMALL, "--rounds", "1000000", "--workers", "1", "--out", str(folder)],
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )
    while child.poll() is None and not RunFolder(folder).has("history.jsonl"):
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGINT)
    said = child.communicate()[1].decode()
    assert f"stopped; resume with 'coterie resume {folder}'" in said
    assert child.returncode == 130


def tables(place: Path) -> None:
    place.mkdir()
    for site in "abc":
        generator = random.Random(site)
        rows = [[x := generator.gauss(0, 1), "yes" if x > 0 else "no"] for _ in range(40)]
        with (place / f"{site}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["value", "ill"], *rows])


def test_a_run_resumes_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables(tmp_path / "sites")
    (tmp_path / "own.py").write_text(
        "from torch import nn\nfrom torch.nn import functional as F\n"
        "def network(input_shape, classes):\n    return nn.Linear(*input_shape, classes)\n"
        "def smooth(outputs, targets):\n    return F.cross_entropy(outputs, targets, label_smoothing=0.1)\n"
    )
    monkeypatch.chdir(tmp_path)
    how = {"model": "own.py:network", "loss": "own.py:smooth", "label": "ill", "max_bytes": 1}
    coterie.run("fedavg", data="sites", rounds=3, out="run", **how)  # type: ignore[arg-type]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = coterie.resume("../run", max_bytes="1GB")
    assert len(result.history) == 3
    assert coterie.load("../run").predict([[1.0]]).tolist() == ["yes"]


def test_a_dict_is_not_a_federation() -> None:
    with pytest.raises(ConfigError, match="federation is a dict: expected"):
        coterie.run("cfl", {"a": ([[1.0]], [0])})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="federation is a dict: expected"):
        coterie.compare("cfl", {"a": ([[1.0]], [0])})  # type: ignore[arg-type]


def test_a_diagnosis_does_not_speak_of_splits_that_it_never_makes(capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", *SMALL, "--rounds", "5"])
    said = capsys.readouterr()
    assert "cannot split" not in said.err
    assert "After 5 rounds of one model for 4 clients" in said.out
