"""`coterie deploy` writes an app that Flower accepts; bad input is a one-line error; nothing private is sent."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs coterie[flower]")

from coterie.cli import deploy_commands, main
from coterie.errors import RunError
from coterie.federation import Federation
from coterie.federation.fingerprint import fingerprint
from coterie.flower import deploy, local, warm
from coterie.flower.certificates import make_certificates, make_node_key
from coterie.runs.assemble import make_federation
from coterie.runs.config import make_config

FAKE_FLOWER = """
import importlib.metadata, os, runpy, sys, types

def report():
    print(sys.argv, os.environ["COLOUR"], os.getcwd())
    raise SystemExit(3)

importlib.metadata.entry_points = lambda **which: [types.SimpleNamespace(load=lambda: report)]
for name in ("coterie", "coterie.flower", "coterie.flower.client", "coterie.flower.server", "torch"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["torch"].seed = lambda: 0
runpy.run_path(sys.argv[1])["serve"](sys.argv[2])
"""
SMALL = ["--scenario", "digits-halves", "--clients", "3", "--groups", "2", "--samples", "20", "--rounds", "2"]


@pytest.fixture
def coterie(capfd, tmp_path, monkeypatch):
    """Run the command in an empty working folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def config_of(folder):
    return tomllib.loads((folder / "app" / "pyproject.toml").read_text())


def test_it_writes_an_app_that_flower_accepts(coterie, tmp_path):
    code, out, err = coterie("deploy", *SMALL, "--out", "here", "--method", "cfl:weighting=uniform", "--steps", 4)
    assert (code, err) == (0, "")
    assert "README.md" in out
    app = tmp_path / "here" / "app"

    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    config, warnings = load_and_validate(app / "pyproject.toml")
    assert not warnings
    settings = config["tool"]["flwr"]["app"]["config"]
    assert settings["method"] == "cfl:weighting=uniform"
    assert (settings["steps"], settings["rounds"], settings["min-nodes"]) == (4, 2, 3)
    assert "epochs" not in settings
    assert settings["out"] == str(tmp_path / "here" / "run")
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as sent:
        assert {name for name in sent.namelist() if not name.startswith(".info")} == {
            "pyproject.toml",
            "server_app.py",
            "client_app.py",
        }


def test_the_server_reads_what_was_written(coterie, tmp_path):
    from coterie.flower.server import read_options
    from coterie.flower.tables import spelt

    coterie("deploy", *SMALL, "--out", "here", "--lr-schedule", "decay:0.9", "--batch-size", "full")
    settings = config_of(tmp_path / "here")["tool"]["flwr"]["app"]["config"]
    config, network = read_options(spelt(settings))
    given = make_config({"scenario": "digits-halves", "rounds": 2, "lr_schedule": "decay:0.9", "batch_size": "full"})
    assert config.rounds == 2
    assert config.lr_schedule == given.lr_schedule
    assert config.batch_size == "full"
    assert network.min_nodes == 3
    assert network.classes == 10


def test_the_clients_files_hold_the_scenario(coterie, tmp_path):
    coterie("deploy", *SMALL, "--out", "here", "--seed", 5)
    written = Federation.from_folder(tmp_path / "here" / "clients")
    values = {"scenario": "digits-halves", "clients": 3, "groups": 2, "samples": 20, "seed": 5}
    federation, _ = make_federation(make_config(values))
    assert fingerprint(written) == fingerprint(federation)
    assert written.groups == federation.groups


def test_the_same_command_again_changes_nothing_and_another_is_refused(coterie, tmp_path):
    assert coterie("deploy", *SMALL, "--out", "here")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "here").rglob("*") if path.is_file()}
    changed = tmp_path / "here" / "app" / "client_app.py"
    before[changed] += b"# my own way to read data\n"
    changed.write_bytes(before[changed])
    assert coterie("deploy", *SMALL, "--out", "here")[0] == 0
    assert before == {path: path.read_bytes() for path in (tmp_path / "here").rglob("*") if path.is_file()}
    code, _, err = coterie("deploy", *SMALL, "--out", "here", "--lr", 0.5)
    assert code == 2
    assert "other settings" in err


def test_a_failed_command_leaves_its_place_to_the_corrected_one(coterie, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    for name in "abc":
        np.savez(tmp_path / "data" / f"{name}.npz", x=np.zeros((9, 2), np.float32), y=np.arange(9) % 2)
    code, _, err = coterie("deploy", "--local", 2, "--data", "data", "--out", "here")
    assert (code, "with 3 clients" in err) == (2, True)
    assert not (tmp_path / "here").exists()

    def end(*_, **__):
        raise RunError("the SuperLink did not start: no room")

    monkeypatch.setattr(deploy_commands, "try_out", end)
    assert coterie("deploy", "--local", 3, "--data", "data", "--out", "here", "--lr", 9)[0] == 2
    assert (tmp_path / "here" / "failed.txt").read_text() == "the SuperLink did not start: no room\n"
    (tmp_path / "here" / "app" / "client_app.py").write_text("# my own way to read data\n")
    assert coterie("deploy", "--local", 3, "--data", "data", "--out", "here", "--lr", 0.5)[0] == 2
    assert config_of(tmp_path / "here")["tool"]["flwr"]["app"]["config"]["lr"] == 0.5
    assert (tmp_path / "here" / "app" / "client_app.py").read_text() == "# my own way to read data\n"
    monkeypatch.setattr(deploy_commands, "try_out", lambda *_, **__: None)
    assert coterie("deploy", "--local", 3, "--data", "data", "--out", "here", "--lr", 0.5, "--quiet")[0] == 0
    assert "other settings" in coterie("deploy", "--local", 3, "--data", "data", "--out", "here")[2]


def test_nodes_with_data_of_their_own(coterie, tmp_path):
    assert coterie("deploy", "--out", "here", "--nodes", 7, "--method", "ifca:k=3", "--model", "mlp")[0] == 0
    assert not (tmp_path / "here" / "clients").exists()
    settings = config_of(tmp_path / "here")["tool"]["flwr"]["app"]["config"]
    assert settings["min-nodes"] == 7
    assert "scenario" not in settings
    assert "/path/of/its-data.npz" in (tmp_path / "here" / "README.md").read_text()


def test_a_folder_of_data_stays_where_it_is(coterie, tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        np.savez(tmp_path / "data" / f"{name}.npz", x=np.ones((9, 2), np.float32), y=np.arange(9) % 2)
    assert coterie("deploy", "--data", "data", "--out", "here")[0] == 0
    assert not (tmp_path / "here" / "clients").exists()
    assert str(tmp_path / "data" / "a.npz") in (tmp_path / "here" / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (SMALL, "--out is missing"),
        ([*SMALL, "--out", "x", "--method", "cflx"], "did you mean 'cfl'"),
        ([*SMALL, "--out", "x", "--rounds", "0"], "rounds"),
        ([*SMALL, "--out", "x", "--precision", "float64"], "float64"),
        ([*SMALL, "--out", "x", "--address", "somewhere"], "host:port"),
        ([*SMALL, "--out", "x", "--address", "a b:80"], "host:port"),
        ([*SMALL, "--out", "x", "--address", "host:99999"], "host:port"),
        ([*SMALL, "--out", "x", "--nodes", "9"], "there are 3 clients"),
        ([*SMALL, "--out", "x", "--nodes", "0"], "nodes"),
        ([*SMALL, "--out", "x", "--model", "mpl"], "mlp"),
        (["--out", "x", "--model", "mpl"], "mlp"),
        ([*SMALL, "--out", "full"], "not empty"),
        ([*SMALL, "--out", "file"], "a file of that name"),
        ([*SMALL, "--out", "x", "--local", "4"], "one node per client"),
        ([*SMALL, "--out", "x", "--local", "3", "--nodes", "2"], "does not go with --local"),
        (["--out", "x", "--local", "0"], "local"),
        (["--out", "x", "--local", "3", "--data", "two"], "one node per client"),
        (["--out", "x", "--data", "nowhere"], "no such folder"),
        (["none.toml", "--out", "x"], "no such config file"),
    ],
)
def test_bad_input_costs_one_line(coterie, tmp_path, words, hint):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "two").mkdir()
    for name in ("a", "b"):
        np.savez(tmp_path / "two" / f"{name}.npz", x=np.ones((9, 2), np.float32), y=np.arange(9) % 2)
    code, out, err = coterie("deploy", *words)
    assert (code, out) == (2, "")
    assert err.startswith("coterie: ")
    assert err.count("\n") == 1
    assert hint in err
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"


def test_secure_makes_keys_that_only_their_owner_reads(coterie, tmp_path):
    code, _, err = coterie("deploy", *SMALL, "--out", "here", "--secure", "--address", "server.example.org:9000",
                           "--privacy", "permutation", "--secure-sums", "--secure-minimum", "2")  # fmt: skip
    assert code == 0, err
    keys = tmp_path / "here" / "keys"
    names = ("ca.key", "server.key", "node-0", "node-1", "node-2", "secret")
    private = [keys / name for name in names]
    for path in private:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    told = (tmp_path / "here" / "README.md").read_text()
    assert "--enable-supernode-auth" in told
    assert "flwr supernode register keys/node-2.pub coterie" in told
    assert f" secret-file='{keys / 'secret'}'" in told
    assert f"sums-key-file='{keys / 'node-1'}'" in told
    assert f"sums-clients-file='{keys / 'clients.json'}' least-in-sum=2" in told
    listed = json.loads((keys / "clients.json").read_text())
    assert list(listed.values()) == [(keys / f"node-{i}.pub").read_text().strip() for i in range(3)]
    assert "--insecure" not in told
    subject = subprocess.run(
        ["openssl", "x509", "-in", keys / "server.pem", "-noout", "-ext", "subjectAltName"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "DNS:server.example.org" in subject
    assert "IP Address:127.0.0.1" in subject
    verified = subprocess.run(["openssl", "verify", "-CAfile", keys / "ca.crt", keys / "server.pem"], check=False)
    assert verified.returncode == 0


def test_keys_that_exist_are_kept(tmp_path):
    first = make_certificates(tmp_path, ["localhost"])
    before = first.certificate.read_bytes(), make_node_key(tmp_path, "node-0").read_bytes()
    assert make_certificates(tmp_path, ["elsewhere"]) == first
    assert before == (first.certificate.read_bytes(), make_node_key(tmp_path, "node-0").read_bytes())


def test_settings_of_a_node_come_back_from_flowers_parser(tmp_path):
    from flwr.common.config import parse_config_args

    values = {"client": "Ann Lee, 3", "data": str(tmp_path / "with space" / "a.npz"), "partition-id": 3, "lr": 0.5}
    assert parse_config_args([local.node_config(values)]) == values
    with pytest.raises(deploy.ConfigError, match="quote"):
        local.node_config({"client": "O'Hara"})


def test_a_warm_call_has_the_callers_arguments_environment_and_output(tmp_path):
    """Behind the door is a program that tells what it was given, in the place of Flower's."""
    door, server = tmp_path / "door", tmp_path / "server.py"
    server.write_text(FAKE_FLOWER)
    own = tmp_path / "own"
    own.mkdir()
    (own / "flwr-clientapp").write_text('#!/bin/sh\necho "own $@"\n')
    (own / "flwr-clientapp").chmod(0o755)
    warm.install(tmp_path / "bin", door, own)
    program = str(tmp_path / "bin" / "flwr-clientapp")

    def called():
        environment = os.environ | {"COLOUR": "green"}
        with open(tmp_path / "said", "w") as said:
            subprocess.run([program, "--token", "a b"], env=environment, cwd=tmp_path, stdout=said, check=True)
        return (tmp_path / "said").read_text()

    assert called() == "own --token a b\n"  # nobody behind the door yet
    process = subprocess.Popen([sys.executable, str(server), warm.__file__, str(door)])
    try:
        wait_until(door.exists)
        expected = f"['flwr-clientapp', '--token', 'a b'] green {tmp_path}\n"
        assert called() in ("", expected)
        wait_until(lambda: (tmp_path / "said").read_text() == expected)
    finally:
        process.kill()
        process.wait()
    assert called() == "own --token a b\n"


def test_a_network_says_when_apps_cannot_be_kept_loaded(tmp_path, monkeypatch):
    """With a Flower whose programs are not those that would be loaded."""
    monkeypatch.setattr(local, "program", lambda name: str(Path(sys.executable).parent / name))
    with local.Network(tmp_path / "flower", warm_module="coterie.nothing_here") as network:
        assert network.notice.startswith("every message starts a process of its own")
        assert "nothing_here" in network.notice


def wait_until(what, seconds=60):
    limit = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_network_ends_what_it_started_even_grandchildren(tmp_path, monkeypatch):
    """With a SuperLink that only listens, and leaves a child behind that nobody is told of."""
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "flower-superlink").write_text(
        f"#!{sys.executable}\n"
        "import socket, subprocess, sys, time\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "door = socket.create_server(('127.0.0.1', int(sys.argv[sys.argv.index('--port') + 1])))\n"
        "time.sleep(600)\n"
    )
    (fake / "flower-superlink").chmod(0o755)
    monkeypatch.setattr(local, "program", lambda name: str(fake / name))
    with local.Network(tmp_path / "flower", warm_module=None) as network:
        wait_until(lambda: any("sleep 600" in words for words in network.processes().values()))
        assert len(network.processes()) == 2
        environment = Path(f"/proc/{network.link.pid}/environ").read_bytes().decode().split("\0")
        assert {"FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"} <= set(environment)
    assert network.processes() == {}


def test_a_super_link_that_does_not_start_says_why(tmp_path, monkeypatch):
    fake = tmp_path / "flower-superlink"
    fake.write_text("#!/bin/sh\necho the disk is full\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(local, "program", lambda name: str(tmp_path / name))
    with (
        pytest.raises(local.RunError, match="the disk is full"),
        local.Network(tmp_path / "flower", warm_module=None),
    ):
        pass


def test_a_logs_closing_words_are_its_error():
    log = (
        "\x1b[92mINFO \x1b[0m: ServerApp\nTraceback (most recent call last):\n  File x\n"
        "coterie.errors.RunError: only 1 of 4 clients gave a sound reply\nExit Code: 201\n\nFor more, visit\n"
    )
    assert local.closing_words(log) == "coterie.errors.RunError: only 1 of 4 clients gave a sound reply"
    assert local.closing_words("\x1b[91mno space\nleft ") == "no space left"
    assert local.closing_words("") == "it said nothing"
