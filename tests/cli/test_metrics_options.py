"""The command's options for metrics, validation data and limits do what Python's do."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie
from coterie.cli import main
from coterie.runs.folder import RunFolder
from coterie.runs.loading import load
from coterie_views.report.reading import read_run
from coterie_views.report.sections import clients

RUN = [
    *("run", "--method", "fedavg", "--scenario", "digits-iid", "--clients", "3", "--samples", "30", "--rounds", "3"),
    *("--workers", "1", "--out", "runs/one"),
]


def call(*words: str) -> int:
    try:
        main(list(words))
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def rows(outputs, labels):\n    return len(labels)\n")


def test_metrics_are_shown_kept_and_the_same_as_from_python(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(*RUN, "--metrics", "auc,own.py:rows", "--validation", "0.2", "--patience", "9") == 0
    shown = capfd.readouterr()
    assert "auc 0." in shown.err
    head, row = shown.out.splitlines()[:2]
    assert {"auc", "rows", "ARI"} <= set(head.split())
    assert "–" in row  # no groups to agree with
    assert "adjusted Rand index" not in shown.out
    result = load(Path("runs/one"))
    python = coterie.run(
        "fedavg", scenario="digits-iid", clients=3, samples=30, rounds=3, workers=1, metrics=["auc"], validation=0.2
    )
    assert result.test["auc"] == python.test["auc"]
    assert result.validation["auc"] == python.validation["auc"]
    assert ">auc</th>" in str(clients(read_run(Path("runs/one")), []))


def test_the_command_says_why_a_run_stopped_and_resumes_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(*RUN, "--max-bytes", "1KB") == 0
    assert "fedavg: stopped after round 1: " in capfd.readouterr().out
    assert call("resume", "runs/one", "--max-bytes", "1GB", "--quiet") == 0
    summary = RunFolder(Path("runs/one")).summary()
    assert summary is not None
    assert (summary.rounds, summary.stopped) == (3, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--metrics", "auk"], "unknown metric 'auk': did you mean 'auc'?"),
        (["--metrics", "own.py:row"], "metric 'own.py:row': 'row' in own.py is not there; did you mean 'rows'?"),
        (["--metrics", "r2"], "metric 'r2' does not go with labels that are classes"),
        (["--validation", "1.5"], "validation='1.5': expected"),
        (["--patience", "0"], "patience='0': expected"),
        (["--monitor", "auc"], "monitor='auc' goes with patience"),
        (["--max-bytes", "lots"], "max_bytes='lots': expected a size"),
    ],
)
def test_bad_values_are_one_line(given: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(*RUN, *given) == 2
    error = capfd.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def test_a_list_in_a_file_and_a_run_from_python(capfd: pytest.CaptureFixture[str]) -> None:
    Path("config.toml").write_text('metrics = ["auc", "f1"]\nmethod = "fedavg"\nrounds = 1\nscenario = "digits-iid"\n')
    assert call("run", "config.toml", "--clients", "2", "--samples", "20", "--out", "runs/two", "--quiet") == 0
    assert RunFolder(Path("runs/two")).config()["metrics"] == "auc,f1"
    federation = coterie.Federation.from_tensors({"a": ([[0.0], [1.0]] * 10, [0, 1] * 10)})
    coterie.run("fedavg", federation, rounds=1, out="runs/three")
    Path("runs/three/summary.json").unlink()
    assert call("resume", "runs/three") == 2
    assert "resume it in Python with coterie.resume('runs/three', federation=…)" in capfd.readouterr().err
