"""The command: one line and exit code 2 for every bad input, and nothing but what was asked for otherwise."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from coterie.cli import main

SMALL = [
    "--method",
    "fedavg",
    "--scenario",
    "xor",
    "--clients",
    "4",
    "--samples",
    "10",
    "--rounds",
    "2",
    "--workers",
    "1",
]


@pytest.fixture
def coterie(capfd, tmp_path, monkeypatch):
    """Run the command in an empty working folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTERIE_DATA", raising=False)

    def call(*words):
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def write_npz(folder, **clients):
    folder.mkdir()
    for name, arrays in clients.items():
        np.savez(folder / f"{name}.npz", **arrays)


def good(**changes):
    return {"x": np.ones((6, 2), np.float32), "y": np.arange(6) % 2} | changes


BAD_DATA = {
    "no-files": {},
    "empty-client": {"a": good(), "b": good(x=np.ones((0, 2), np.float32), y=np.zeros(0, int))},
    "shapes": {"a": good(), "b": good(x=np.ones((6, 3), np.float32))},
    "dtypes": {"a": good(), "b": good(x=np.ones((6, 2), int))},
    "labels": {"a": good(), "b": good(y=np.array([0, 1, -1, 0, 1, 0]))},
    "nan": {"a": good(), "b": good(x=np.full((6, 2), np.nan, np.float32))},
    "inf": {"a": good(), "b": good(x=np.full((6, 2), np.inf, np.float32))},
    "lengths": {"a": good(), "b": good(y=np.zeros(5, int))},
    "text": {"a": good(), "b": good(x=np.array(["a"] * 6))},
    "no-y": {"a": good(), "b": {"x": np.ones(3)}},
}


def one_line(result):
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert err.startswith("coterie: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("kind", BAD_DATA)
def test_bad_data_costs_one_line_naming_the_client(coterie, tmp_path, kind):
    write_npz(tmp_path / "data", **BAD_DATA[kind])
    err = one_line(coterie("run", "--data", "data", "--rounds", 1))
    assert ("'b'" in err or "b.npz" in err) if BAD_DATA[kind] else "holds no .npz file" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["run", "--methd", "x"], "--method"),
        (["rnu"], "No such command"),
        (["run", "--method", "fedavgg"], "did you mean 'fedavg'"),
        (["run", "--method", "fedavg:weighing=uniform"], "did you mean 'weighting'"),
        (["run", "--method", "fedavg:weighting=sample"], "weighting"),
        (["run", "--method", "fedavg:lr"], "expected name:key=value"),
        (["run", "--scenario", "digits-permutted"], "did you mean 'digits-permuted'"),
        (["run", "--model", "mpl"], "mlp"),
        (["run", "--model", "mlp:hiden=3"], "hidden"),
        (["run", "--model", "no.such.module:net"], "no.such.module"),
        (["run", "--rounds", "0"], "rounds='0': expected whole number from 1"),
        (["run", "--rounds", "ten"], "rounds='ten'"),
        (["run", "--lr", "-1"], "lr"),
        (["run", "--lr", "nan"], "lr"),
        (["run", "--lr", "inf"], "lr"),
        (["run", "--participation", "1.5"], "participation"),
        (["run", "--seed", "-1"], "seed"),
        (["run", "--batch-size", "0"], "batch_size='0': expected whole number from 1 or full"),
        (["run", "--batch-size", "half"], "batch_size='half'"),
        (["run", "--workers", "0"], "workers"),
        (["run", "--memory", "much"], "8GB"),
        (["run", "--precision", "float8"], "precision"),
        (["run", "--lr-schedule", "stepp:1"], "did you mean 'step'"),
        (["run", "--clients", "100000"], "clients"),
        (["run", "--scenario", "digits-iid", "--samples", "100000"], "samples"),
        (["run", "--clients", "3", "--groups", "4"], "groups=4 with clients=3"),
        (["run", "--scenario", "digits-rotated", "--groups", "3"], "groups=3"),
        (["run", "--scenario", "digits-dirichlet", "--groups", "3"], "groups=3"),
        (["run", "--scenario", "xor", "--groups", "3"], "groups=3"),
        (["run", "--scenario", "xor", "--data", "d"], "give one of the two"),
        (["run", "--data", "nowhere"], "no such folder"),
        (["run", "nowhere.toml"], "no such config file"),
        (["run", "--scenario", "mnist-swapped"], "coterie data fetch mnist"),
        (["run", "--scenario", "mnist-iid", "--data-dir", "nowhere"], "mnist"),
        (["run", "--scenario", "agnews-topics"], "coterie data fetch ag-news"),
        (["run", "--scenario", "xor", "--model", "lstm"], "tokens"),
        (["resume", "nowhere"], "not a run folder"),
        (["resume"], "FOLDER"),
        (["data", "fetch", "mnits"], "mnist"),
        (["methods", "fedavgg"], "did you mean 'fedavg'"),
        (["reproduce", "no-such-table"], "no-such-table"),
        (["reproduce", "--scale", "huge", "x"], "quick"),
    ],
)  # fmt: skip
def test_bad_words_cost_one_line_to_act_on(coterie, tmp_path, words, hint):
    assert hint in one_line(coterie(*words))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("rouns = 3", "unknown option 'rouns': did you mean 'rounds'"),
        ("rounds = 'three'", "rounds='three'"),
        ("rounds = true", "rounds=True: expected whole number"),
        ("data = ''", "data='': expected text, not empty"),
        ("memory = 'infGB'", "memory='infGB': expected a size"),
        ("lr = 1e300\nscenario = 'xor'", "training with lr=1e+300: float32 ends at"),
        (f"rounds = {'[' * 5000}", "not valid TOML"),
        ("rounds = [", "not valid TOML"),
        ("[training]\nlrr = 1", "unknown option 'lrr' in training: did you mean 'lr'"),
        ("lr = 1\n[training]\nlr = 1", "lr is given twice"),
        ("[method]\nk = 1", "needs a key 'name'"),
        ("scenario = 'xor'\nmethod = 'fedavq'", "did you mean 'fedavg'"),
    ],
)
def test_bad_config_files(coterie, tmp_path, text, hint):
    (tmp_path / "c.toml").write_text(text)
    assert hint in one_line(coterie("run", "c.toml"))
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    assert "not valid TOML" in one_line(coterie("run", "b.toml"))
    assert "cannot be read" in one_line(coterie("run", tmp_path))


def test_debug_shows_where(coterie):
    for words in (["run", "--rounds", "0", "--debug"], ["--debug", "run", "--nope"]):
        code, _, err = coterie(*words)
        assert code == 2
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith("coterie: ")


def test_a_bug_of_ours_is_told_from_bad_input(coterie, monkeypatch):
    from coterie.runs import api

    def broken(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(api, "start", broken)
    code, _, err = coterie("run", *SMALL)
    assert (code, err) == (1, "coterie: unexpected ZeroDivisionError: oops (--debug shows where)\n")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "start", interrupted)
    code, _, err = coterie("run", *SMALL)
    assert code == 130
    assert err.endswith("coterie: stopped\n")  # before the run had a folder


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (OSError(28, "No space left on device", "results/x"), "results/x: No space left on device: check the path"),
        (OSError("no number"), "no number: check the path"),
        (MemoryError("of 9 GB"), "out of memory (of 9 GB): use a smaller model, fewer workers or --memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory (DefaultCPUAllocator"),
        (RecursionError(), "nested too deeply"),
    ],
)
def test_what_the_system_refuses_is_no_bug_of_ours(coterie, monkeypatch, problem, words):
    from coterie.runs import api

    def refused(*_, **__):
        raise problem

    monkeypatch.setattr(api, "start", refused)
    assert words in one_line(coterie("run", *SMALL))


def test_warnings_and_a_loss_that_explodes_are_one_line_each(coterie, tmp_path):
    folder = tmp_path / "data"
    write_npz(folder, a=good(y=np.arange(6, dtype=np.float32)), b=good(y=np.arange(6, dtype=np.float32)))
    words = ["--method", "fedavg", "--rounds", "1", "--workers", "1"]
    code, _, err = coterie("run", "--data", folder, *words, "--lr", "1e-5", "--quiet")
    assert code == 0
    assert err.startswith("coterie: warning: the targets of 'data' are whole numbers stored as floats")
    assert len(err.splitlines()) == 1
    code, out, err = coterie("run", *SMALL, "--model", "logistic", "--lr", "1e6")
    assert code == 0
    assert "round 1: the mean test loss is" in out
    assert "round 1: the mean test loss is" in err


FIRST_LOOK = ["--clients", "4", "--groups", "2", "--samples", "20", "--rounds", "2"]
"""What somebody without data and without a method may type."""


@pytest.mark.parametrize("cores", [1, 2])
def test_the_first_look_gives_both_methods_whether_they_run_at_once_or_not(coterie, tmp_path, monkeypatch, cores):
    from coterie.cli import running

    monkeypatch.setattr(running, "available_cores", lambda: cores)
    code, out, err = coterie("run", *FIRST_LOOK, "--out", "both")
    assert code == 0
    assert "auto on digits-permuted: 4 clients" in err
    at_once = cores == 2 and running.pool_start_method() == "fork"
    assert ("fedavg on digits-permuted" in err) != at_once
    table = [line.split()[0] for line in out.splitlines() if line.startswith(("fedavg ", "auto "))]
    assert table == ["fedavg", "auto"]
    assert coterie("run", *FIRST_LOOK, "--method", "fedavg", "--workers", "1", "--out", "alone", "--quiet")[0] == 0
    model = Path("models") / "cluster-0.safetensors"
    both, alone = (tmp_path / folder / model for folder in ("both/fedavg", "alone"))
    assert both.read_bytes() == alone.read_bytes()
    assert "both" in one_line(coterie("run", *FIRST_LOOK, "--out", "both"))


def test_a_method_that_fails_beside_the_other_is_told_in_a_line(coterie, monkeypatch):
    from coterie.cli import running
    from coterie.errors import RunError
    from coterie.runs import api

    begin = api.start

    def refused(config, **more):
        if config.method == "fedavg":
            raise RunError("fedavg could not run")
        return begin(config, **more)

    monkeypatch.setattr(api, "start", refused)
    monkeypatch.setattr(running, "available_cores", lambda: 2)
    if running.pool_start_method() != "fork":
        pytest.skip("without fork the methods run one after the other")
    code, _, err = coterie("run", *FIRST_LOOK, "--quiet")
    assert (code, err) == (2, "coterie: fedavg could not run\n")


def test_a_run_tells_what_it_did_and_where(coterie, tmp_path):
    code, out, err = coterie("run", *SMALL, "--out", "here")
    assert code == 0
    assert "results: here" in out
    assert "fedavg on xor: 4 clients" in err
    assert "round 2/2" in err
    assert json.loads((tmp_path / "here" / "summary.json").read_text())["clients"] == 4


def test_without_out_a_new_folder_each_time(coterie, tmp_path):
    for _ in range(2):
        assert coterie("run", *SMALL, "--quiet") == (0, "", "")
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    assert all("fedavg-xor" in folder.name for folder in folders)


def test_quiet_resume_prints_nothing(coterie, tmp_path):
    coterie("run", *SMALL, "--out", "here", "--quiet")
    (tmp_path / "here" / "checkpoint.safetensors").unlink()
    assert coterie("resume", "here", "--quiet") == (0, "", "")
    code, out, _ = coterie("resume", "here")
    assert (code, "results: here" in out) == (0, True)


def test_the_command_line_wins_over_the_file(coterie, tmp_path):
    (tmp_path / "c.toml").write_text(
        'scenario = "xor"\nclients = 4\nsamples = 10\nrounds = 9\nseed = 5\nsteps = 3\nworkers = 1\n'
        '[method]\nname = "fedavg"\nserver_lr = 0.5\n'
    )
    assert coterie("run", "c.toml", "--rounds", 1, "--epochs", 2, "--out", "a", "--quiet")[0] == 0
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["rounds"], config["seed"], config["epochs"], config["steps"]) == (1, 5, 2, None)
    assert config["method"] == "fedavg:server_lr=0.5"
    assert coterie("run", "c.toml", "--method", "local", "--rounds", 1, "--out", "b", "--quiet")[0] == 0
    assert json.loads((tmp_path / "b" / "config.json").read_text())["method"] == "local"
    write_npz(tmp_path / "data", a=good(), b=good())
    words = ["run", "c2.toml", "--data", "data", "--rounds", 1, "--out", "c", "--quiet"]
    (tmp_path / "c2.toml").write_text('method = "fedavg"\nscenario = "xor"\nmodel = "logistic"\nworkers = 1\n')
    assert coterie(*words)[0] == 0
    assert json.loads((tmp_path / "c" / "config.json").read_text())["data"] == str(tmp_path / "data")


def test_own_model_by_file(coterie, tmp_path):
    (tmp_path / "mine.py").write_text("from torch import nn\ndef net(classes): return nn.Linear(2, classes)\n")
    assert coterie("run", *SMALL, "--model", "mine.py:net", "--out", "a", "--quiet") == (0, "", "")
    (tmp_path / "a" / "checkpoint.safetensors").unlink()
    assert coterie("resume", "a", "--quiet") == (0, "", "")
    (tmp_path / "mine.py").write_text("from torch import nn\ndef net(): return nn.Linear(9, 2)\n")
    assert "cannot take an input" in one_line(coterie("run", *SMALL, "--model", "mine.py:net", "--quiet"))


def test_lists(coterie):
    for words, expected in (
        (["methods"], ["fedavg", "local"]),
        (["methods", "fedavg"], ["weighting", "server_lr"]),
        (["scenarios"], ["digits-permuted", "xor", "linear-mixture", "mnist-writers", "cifar-dirichlet-quarters"]),
        (["models"], ["mlp", "lstm"]),
        (["data", "list"], ["digits", "mnist", "cifar10", "coterie data fetch NAME"]),
        (["data", "list", "--data-dir", "nowhere"], ["nowhere"]),
        (["reproduce"], ["recipe"]),
        ([], ["Usage: coterie", "resume"]),
        (["data"], ["fetch"]),
        (["--help"], ["run"]),
        (["run", "--help"], ["--participation", "--quiet"]),
        (["--version"], ["coterie"]),
    ):
        code, out, err = coterie(*words)
        assert (code, err) == (0, ""), words
        for word in expected:
            assert word in out, words


FOREIGN = '''
from dataclasses import dataclass
from coterie.methods import Assignment, Info

@dataclass(frozen=True)
class Still:
    """Does nothing at all."""

    k: int = 2

    def start(self, server):
        if self.k < 1:
            raise ValueError("k must be positive")
        return server.initial_model()

    def round(self, state, t, server):
        return state, Info()

    def assignment(self, state, server):
        return Assignment([state], [server.clients])


class NoOptions(Still):
    def __init__(self): object.__setattr__(self, "k", 1)
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of somebody else's, installed, that offers methods."""
    site = tmp_path.parent / f"{tmp_path.name}-site"
    (site / "stillness-1.0.dist-info").mkdir(parents=True)
    (site / "stillness.py").write_text(FOREIGN)
    (site / "stillness-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: stillness\nVersion: 1.0\n")
    points = site / "stillness-1.0.dist-info" / "entry_points.txt"
    points.write_text("[coterie.methods]\nstill = stillness:Still\n")
    monkeypatch.syspath_prepend(str(site))
    yield points
    sys.modules.pop("stillness", None)


def test_a_method_of_another_package(coterie, tmp_path, package):
    assert "Does nothing at all." in coterie("methods")[1]
    assert coterie("run", *SMALL, "--method", "still:k=3", "--out", "a", "--quiet") == (0, "", "")
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["method"] == "still:k=3"
    (tmp_path / "a" / "checkpoint.safetensors").unlink()
    assert coterie("resume", "a", "--quiet") == (0, "", "")
    assert "did you mean 'still'" in one_line(coterie("run", *SMALL, "--method", "stil"))
    assert "has no option 'j'" in one_line(coterie("run", *SMALL, "--method", "still:j=3"))


def test_a_broken_package_harms_only_those_who_ask_for_it(coterie, package):
    package.write_text("[coterie.methods]\nbroken = stillness:Gone\n")
    assert "repair or remove the package" in one_line(coterie("run", *SMALL, "--method", "broken"))
    assert coterie("run", *SMALL, "--method", "fedavg", "--quiet") == (0, "", "")
