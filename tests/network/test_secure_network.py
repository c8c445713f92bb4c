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
    with Network(folder / "flower", certificates, warm=False) as network:
        network.register(keys[0])
        yield network, keys
    assert not network.processes()


def listed(network):
    """The nodes that the SuperLink knows of, by their state."""
    return [node["status"] for node in json.loads(network.flwr("supernode", "list", "--format", "json"))["nodes"]]


def outcome(node, seconds=REFUSED):
    try:
        return node.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def test_only_a_registered_key_gets_in(secure):
    network, keys = secure
    stranger = network.add_node("stranger", {"client": "stranger"}, keys[1])
    keyless = network.add_node("keyless", {"client": "keyless"})
    member = network.add_node("member", {"client": "member"}, keys[0])
    assert outcome(stranger) not in (0, None), network.last_words("stranger")
    assert outcome(keyless) not in (0, None), network.last_words("keyless")
    limit = time.monotonic() + WAIT
    while listed(network) != ["online"]:
        assert time.monotonic() < limit, (listed(network), network.last_words("member"))
    assert member.process.poll() is None


def test_a_node_without_the_authoritys_certificate_is_refused(secure):
    """Once with the system's authorities instead, once without encryption: neither even gets to show its key."""
    network, keys = secure
    before = len(listed(network))
    for name, trust in {"untrusting": [], "plain": ["--insecure"]}.items():
        command = [program("flower-supernode"), "--superlink", network.address, *trust, "--max-retries", "1",
                   "--host", HOST, "--port", str(free_port()), "--node-config", "client='x'"]  # fmt: skip
        command += ["--auth-supernode-private-key", str(keys[0])] if not trust else []
        process = network._start(name, command, network.folder / "homes" / name)
        network._calls.append(process)
        try:
            code = process.wait(REFUSED)
        except subprocess.TimeoutExpired:
            code = None
        assert code not in (0, None), network.last_words(name)
    assert len(listed(network)) == before


def test_a_user_without_the_authoritys_certificate_is_refused(secure):
    network, _ = secure
    config = network.folder / "home" / "config.toml"
    good = config.read_text()
    config.write_text("\n".join(line for line in good.splitlines() if not line.startswith("root-certificates")))
    try:
        with pytest.raises(RunError, match=r"(?i)certificate|ssl|tls"):
            listed(network)
    finally:
        config.write_text(good)


def coterie_deploy(folder: Path, *words: str) -> subprocess.Popen:
    command = [str(Path(sys.executable).parent / "coterie"), "deploy", "--local", "2", "--out", "trial", *words]
    command += ["--scenario", "digits-halves", "--groups", "2", "--samples", "40", "--model", "mlp:hidden=8"]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )  # fmt: skip


def test_a_secure_trial_by_command_is_stopped_and_goes_on(tmp_path):
    """`coterie deploy --local 2 --secure`: Ctrl-C after a round, the same command again, and nothing is left over."""
    words = ["--secure", "--method", "fedavg", "--rounds", "3", "--evaluate-every", "3"]
    first = coterie_deploy(tmp_path, *words)
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

    second = coterie_deploy(tmp_path, *words)
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
