"""With --secure nobody joins without a registered key, and nobody is trusted without the authority's certificate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trials import WAIT

from coterie.errors import RunError
from coterie.flower.certificates import make_certificates, make_node_key
from coterie.flower.local import HOST, Network, free_port, program

REFUSED = 60 if WAIT < 300 else WAIT
"""Seconds in which a node must have given up."""


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    """A SuperLink with TLS and node keys, one registered key, and two that are not."""
    folder = tmp_path_factory.mktemp("secure")
    certificates = make_certificates(folder / "keys", ["localhost", HOST])
    keys = [make_node_key(folder / "keys", f"node-{i}") for i in range(2)]
    with Network(folder / "flower", certificates, warm_module=None) as network:
        network.register(keys[0])
        yield network, keys
    assert not network.processes()


def listed(network):
    """The nodes that the SuperLink knows of, by their state."""
    return [node["status"] for node in json.loads(network.flwr("supernode", "list", "--format", "json"))["nodes"]]


def assert_refused(network, process, name, reason):
    """The node has given up, and for the reason that is meant."""
    try:
        code = process.wait(REFUSED)
    except subprocess.TimeoutExpired:
        code = None
    said = network.log(name).read_text()
    assert code not in (0, None), said[-3000:]
    assert reason in said


def test_only_a_registered_key_gets_in(secure):
    network, keys = secure
    stranger = network.add_node("stranger", {"client": "stranger"}, keys[1])
    keyless = network.add_node("keyless", {"client": "keyless"})
    member = network.add_node("member", {"client": "member"}, keys[0])
    assert_refused(network, stranger.process, "stranger", "Failed to activate SuperNode")
    assert_refused(network, keyless.process, "keyless", "SuperNode authentication is enabled")
    limit = time.monotonic() + WAIT
    while listed(network) != ["online"]:
        assert time.monotonic() < limit, (listed(network), network.last_words("member"))
    assert member.process.poll() is None


def test_a_node_without_the_authoritys_certificate_is_refused(secure):
    """Once with the system's authorities instead, once without encryption: neither even gets to show its key."""
    network, keys = secure
    before = len(listed(network))
    attempts = {
        "untrusting": (["--auth-supernode-private-key", str(keys[0])], "CERTIFICATE_VERIFY_FAILED"),
        "plain": (["--insecure"], "could not establish a connection"),
    }
    for name, (words, reason) in attempts.items():
        command = [program("flower-supernode"), "--superlink", network.address, *words, "--max-retries", "1",
                   "--host", HOST, "--port", str(free_port()), "--node-config", "client='x'"]  # fmt: skip
        assert_refused(network, network.start(name, command), name, reason)
    assert len(listed(network)) == before


def test_a_user_without_the_authoritys_certificate_is_refused(secure):
    network, _ = secure
    config = network.folder / "home" / "config.toml"
    good = config.read_text()
    config.write_text("\n".join(line for line in good.splitlines() if not line.startswith("root-certificates")))
    try:
        with pytest.raises(RunError, match=r"(?i)certificate|connection"):
            network.flwr("supernode", "list")
    finally:
        config.write_text(good)
    assert "Listing" in network.flwr("supernode", "list")


@pytest.fixture
def deploy(tmp_path):
    """Start `coterie deploy --local 2`; one that is still going on in the end is told to stop what it started."""
    begun = []

    def start(*words: str) -> subprocess.Popen:
        command = [str(Path(sys.executable).parent / "coterie"), "deploy", "--local", "2", "--out", "trial", *words]
        command += ["--scenario", "digits-halves", "--groups", "2", "--samples", "40", "--model", "mlp:hidden=8"]
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
        )  # fmt: skip
        begun.append(process)
        return process

    yield start
    for process in begun:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def test_a_secure_trial_by_command_is_stopped_and_goes_on(deploy, tmp_path):
    """`coterie deploy --local 2 --secure`: Ctrl-C after a round, the same command again, and nothing is left over."""
    words = ["--secure", "--method", "fedavg", "--rounds", "3", "--evaluate-every", "3"]
    first = deploy(*words)
    history = tmp_path / "trial" / "run" / "history.jsonl"
    limit = time.monotonic() + WAIT
    while not (history.exists() and history.read_text().count("\n")) and first.poll() is None:
        assert time.monotonic() < limit
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 130, said
    assert "goes on" in said
    assert not left_over(tmp_path)
    done = history.read_text().count("\n")
    assert 1 <= done < 3

    second = deploy(*words)
    said, _ = second.communicate(timeout=WAIT)
    assert second.returncode == 0, said
    summary = json.loads((tmp_path / "trial" / "run" / "summary.json").read_text())
    assert summary["clients"] == 2
    assert [json.loads(line)["round"] for line in history.read_text().splitlines()] == [1, 2, 3]
    assert "with TLS and node keys" in said
    assert not left_over(tmp_path)


def left_over(folder: Path) -> list[str]:
    """Processes that have this folder in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder / "trial").encode() in text:
                found.append(text[:300].decode(errors="replace"))
    return found
