"""A Flower network on this machine's loopback: a SuperLink, SuperNodes and runs, all ended by whoever started them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.engines.children import ignore_sigint
from coterie.errors import ConfigError, RunError
from coterie.flower import SWITCHES
from coterie.flower.certificates import Certificates, public_key
from coterie.flower.warm import install

HOST = "127.0.0.1"
MARK = "COTERIE_NETWORK"
"""A variable in the environment of all that is started, by which grandchildren are found again."""
CONNECTION = "coterie"
"""The SuperLink's name in Flower's configuration file."""
PATIENCE = 90.0
"""Seconds that a process may take to start on a busy machine."""
GRACE = 8.0
"""Seconds that a process has to end by itself; Flower gives its own exit handlers five."""
RESTART_PAUSE = 5.0
"""Seconds between attempts to start a node again; SuperLink refuses a known key for a minute after a hard kill."""
MOST_RESTARTS = 30
"""A node that ends more often than this will not be helped by another start."""


@dataclass
class SuperNodeProcess:
    """A SuperNode: how it is started, and its process."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes]
    started: float
    restarts: int = 0


class Network:
    """A SuperLink on a free port of the loopback and the SuperNodes that join it; use it in a `with` statement.

    All state is in `folder`: Flower's homes, the logs, and with `database` what the SuperLink knows, so that it can be
    started again; without, that is in memory. With `certificates` the connection is encrypted and only nodes with a
    registered key may join. Each node has a home of its own, because two of them that unpack an app into one folder at
    the same time read half-written files. `warm_module` spares each message the seconds that a ClientApp takes to
    start; where it cannot, `notice` says so.
    """

    def __init__(
        self,
        folder: Path,
        certificates: Certificates | None = None,
        *,
        database: bool = False,
        warm_module: str | None = "coterie.flower.warm",
    ) -> None:
        self.folder = folder.absolute()
        self.certificates = certificates
        self.database = database
        self.port = free_port()
        self.link: subprocess.Popen[bytes] | None = None
        self.nodes: dict[str, SuperNodeProcess] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self._mark = secrets.token_hex(16)
        self._warm_module = warm_module if hasattr(os, "fork") else None
        self._door = Path(tempfile.mkdtemp(prefix="coterie-")) / "door" if self._warm_module else None
        self.notice: str | None = None
        """What works less well than it could here, in one line."""

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"{HOST}:{self.port}"

    def __enter__(self) -> Network:
        try:
            if self._door:
                install(self.folder / "bin", self._door, Path(program("flwr")).parent)
                self.start("warm", [sys.executable, "-m", str(self._warm_module), str(self._door)])
            self.start_link()
            self._wait_for_door()
        except BaseException:
            self.close()
            raise
        return self

    def _wait_for_door(self) -> None:
        """Wait until loaded apps can be forked; where that fails, Flower starts its own and the notice says so."""
        limit = time.monotonic() + PATIENCE
        while self._door and not self._door.exists():
            if self._started[0].poll() is not None or time.monotonic() > limit:
                self.notice = f"every message starts a process of its own: {self.last_words('warm')}"
                return
            time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_link(self) -> None:
        """Start the SuperLink (again, on its database, after it ended) and wait until it listens."""
        home = self.folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(connection_table(self.address, self.certificates), encoding="utf-8")
        command = [program("flower-superlink"), "--host", HOST, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        command += ["--database", str(self.folder / "state.db")] if self.database else []
        if self.certificates:
            files = self.certificates
            command += ["--ssl-ca-certfile", str(files.authority), "--ssl-certfile", str(files.certificate)]
            command += ["--ssl-keyfile", str(files.key), "--enable-supernode-auth"]
        else:
            command += ["--insecure"]
        self.link = self._start("superlink", command, home)
        limit = time.monotonic() + PATIENCE
        while not listens(self.port):
            if self.link.poll() is not None or time.monotonic() > limit:
                raise RunError(f"the SuperLink did not start: {self.last_words('superlink')}")
            time.sleep(0.1)

    def add_node(self, name: str, config: Mapping[str, Any], key: Path | None = None) -> SuperNodeProcess:
        """Start a SuperNode with its own settings (what the ClientApp finds in `context.node_config`)."""
        program("flower-supernode")  # or say what to install
        command = [sys.executable, "-m", "coterie.flower.warm", "--start", "flower-supernode"]
        command += ["--superlink", self.address, "--host", HOST]
        command += ["--port", str(free_port()), "--node-config", node_config(config)]
        command += ["--root-certificates", str(self.certificates.authority)] if self.certificates else ["--insecure"]
        if key:
            command += ["--auth-supernode-private-key", str(key)]
        process = self._start(name, command, self.folder / "homes" / name)
        self.nodes[name] = SuperNodeProcess(name, command, process, time.monotonic())
        return self.nodes[name]

    def register(self, key: Path) -> None:
        """Let the node with this key join."""
        self.flwr("supernode", "register", str(public_key(key)), CONNECTION)

    def flwr(self, *words: str, timeout: float = PATIENCE) -> str:
        """What a `flwr` command prints; a RunError with its last words if it fails."""
        command = [program("flwr"), *words]
        try:
            done = subprocess.run(
                command, env=self._environment(self.folder / "home"), stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=timeout, start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RunError(f"'flwr {words[0]}' took longer than {timeout:.0f} s") from None
        if done.returncode:
            raise RunError(f"'flwr {' '.join(words[:2])}' failed: {closing_words(done.stdout + done.stderr)}")
        return done.stdout

    def submit(self, app: Path, changes: Mapping[str, Any] | None = None, name: str = "run") -> subprocess.Popen[bytes]:
        """Start a run of an app; the process ends when the run has ended, its output is the log `name`.

        `changes` replace settings of the app's own configuration.
        """
        command = [program("flwr"), "run", str(app), CONNECTION, "--stream"]
        return self.start(name, command + (["-c", node_config(changes)] if changes else []))

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start any command in the network's environment; it ends with the network, its output is the log `name`."""
        return self._start(name, command, self.folder / "home")

    def tend(self) -> list[str]:
        """Start nodes again that have ended, for a while; the names of those."""
        restarted = []
        for node in self.nodes.values():
            if node.process.poll() is None or time.monotonic() - node.started < RESTART_PAUSE:
                continue
            if node.restarts == MOST_RESTARTS:
                raise RunError(f"{node.name} ended {node.restarts + 1} times: {self.last_words(node.name)}")
            node.process = self._start(node.name, node.command, self.folder / "homes" / node.name)
            node.started = time.monotonic()
            node.restarts += 1
            restarted.append(node.name)
        return restarted

    def processes(self) -> dict[int, str]:
        """All living processes that were started here, and by those in turn: their ids, names and command lines.

        Where there is no /proc this is what was started directly; Flower's own watch ends the rest a moment later.
        """
        if not Path("/proc/self/environ").exists():
            return {process.pid: str(process.args) for process in self._started if process.poll() is None}
        mine = f"{MARK}={self._mark}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mine in (entry / "environ").read_bytes().split(b"\0"):
                        words = (entry / "comm").read_bytes() + (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(entry.name)] = " ".join(words.decode(errors="replace").split())
        return found

    def close(self) -> None:
        """End everything that was started, nodes before the SuperLink they take leave of, and then what is left."""
        with ignore_sigint():  # a second Ctrl-C must not stop what ends the others
            stop([process for process in self._started if process is not self.link])
            stop(self._started)
            limit = time.monotonic() + GRACE
            while (left := self.processes()) and time.monotonic() < limit:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)
            if self._door:
                shutil.rmtree(self._door.parent, ignore_errors=True)

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.folder / "logs" / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The end of a log, on one line."""
        path = self.log(name)
        return closing_words(path.read_text(errors="replace")) if path.exists() else "it left no log"

    def _start(self, name: str, command: list[str], home: Path) -> subprocess.Popen[bytes]:
        home.mkdir(parents=True, exist_ok=True)
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        with open(self.log(name), "ab") as log:
            # A session of its own, so that Ctrl-C in the terminal reaches this process alone, which ends the others.
            process = subprocess.Popen(
                command, env=self._environment(home), cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        return process

    def _environment(self, home: Path) -> dict[str, str]:
        """The environment of what is started; the programs beside this Python come first on the path."""
        first = [str(self.folder / "bin")] if self._door else []
        path = os.pathsep.join([*first, str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        own = {"PATH": path, "FLWR_HOME": str(home), MARK: self._mark, "PYTHONUNBUFFERED": "1"}
        return {"OMP_NUM_THREADS": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25"} | dict(os.environ) | SWITCHES | own


def connection_table(address: str, certificates: Certificates | None) -> str:
    """Flower's configuration file with one SuperLink, the default."""
    trust = f"root-certificates = {json.dumps(str(certificates.authority))}" if certificates else "insecure = true"
    return (
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = {json.dumps(address)}\n{trust}\n'
    )


def node_config(values: Mapping[str, Any]) -> str:
    """Settings as a SuperNode takes them: key=value with text in quotes."""
    for key, value in values.items():
        if isinstance(value, str) and ("'" in value or "\n" in value):
            raise ConfigError(f"node setting {key}={value!r}: Flower cannot take a quote or a line break in it: rename")
    return " ".join(
        f"{key}='{value}'" if isinstance(value, str) else f"{key}={json.dumps(value)}" for key, value in values.items()
    )


def program(name: str) -> str:
    """The path of one of Flower's programs, beside this Python; a ConfigError if it is not installed."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise ConfigError(f'{name} is not installed beside this Python: pip install "coterie[flower]"')
    return str(path)


def free_port() -> int:
    """A port of the loopback that is free at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def listens(port: int) -> bool:
    """Does anybody listen on that port of the loopback?"""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ask processes to end, and end those that do not."""
    living = [process for process in processes if process.poll() is None]
    for process in living:
        process.terminate()
    limit = time.monotonic() + GRACE
    for process in living:
        try:
            process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def closing_words(text: str, most: int = 300) -> str:
    """What a log says in the end, on one line: the last error in it, or else its last words."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\w*: \S", line)]
    return errors[-1][:most] if errors else " ".join(" ".join(lines).split())[-most:] or "it said nothing"
