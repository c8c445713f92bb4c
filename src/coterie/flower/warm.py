"""Apps without the wait: Flower starts a process for every message and every run, most of whose time goes to imports.

One process loads everything once and forks for each of them. SuperLink and SuperNodes find it through small programs
of the same names that stand before Flower's own on their path; if nobody answers there, Flower's own is started as
ever. Every message still has a process of its own, with the arguments, environment and output that Flower gave it.

Run by its path this file needs nothing but the standard library, because it is started once for each message.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import shlex
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

PROGRAMS = ("flwr-clientapp", "flwr-serverapp")
MOST = 2**20
"""Bytes that the arguments and the environment of a call may take."""


def install(folder: Path, door: Path, flowers_own: Path) -> None:
    """Write programs that call through the socket `door`, or else start those of the folder `flowers_own`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        words = [sys.executable, "-IS", str(Path(__file__).absolute()), str(door), str(flowers_own / name)]
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        script.chmod(0o755)


def call(door: str, flowers_own: str, arguments: list[str]) -> None:
    """Have the arguments, this environment and this output used by a fork of the process behind the door."""
    content = json.dumps([Path(flowers_own).name, arguments, dict(os.environ), os.getcwd()]).encode()
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(door)
            streams = array.array("i", [1, 2])
            line.sendmsg([len(content).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
            line.sendall(content)
            if line.recv(1):
                return
    except OSError:
        pass  # nobody is there (yet, or any more)
    os.execv(flowers_own, [flowers_own, *arguments])


def serve(door: str) -> None:
    """Load what the apps need and answer calls, each in a fork, until the parent of this process ends."""
    import httpcore  # noqa: F401  httpx loads it when it is first used, which would be in every fork
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.superlink.cli import flwr_serverapp
    from flwr.supernode.cli import flwr_clientapp

    import coterie.flower.client
    import coterie.flower.server  # noqa: F401
    from coterie.flower.prompt_node import shorten_retries

    shorten_retries(inflatable_utils)
    programs = dict(zip(PROGRAMS, (flwr_clientapp, flwr_serverapp), strict=True))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as entrance:
        entrance.bind(door)
        entrance.listen(128)
        entrance.settimeout(1)
        while os.getppid() == parent:
            try:
                line, _ = entrance.accept()
            except TimeoutError:
                continue
            with line:
                if os.fork() == 0:
                    entrance.close()
                    _answer(line, programs)


def _answer(line: socket.socket, programs: Mapping[str, Callable[[], None]]) -> None:
    """In the fork: become what was called, and never return."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        line.settimeout(10)
        size, streams, _, _ = socket.recv_fds(line, 8, 2)
        content = bytearray()
        while len(content) < min(MOST, int.from_bytes(size, "big")) and (part := line.recv(65536)):
            content += part
        name, arguments, environment, place = json.loads(content)
        line.sendall(b"1")
        line.close()
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(place)
        sys.argv = [name, *arguments]
        _take_name(name)
        _draw_afresh()
        programs[name]()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        if sys.exception():
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _take_name(name: str) -> None:
    """Be found under the program's name by those who look through the processes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _draw_afresh() -> None:
    """Forks must not share the state of generators that nobody seeded."""
    import numpy as np
    import torch

    np.random.seed(None)
    torch.seed()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        call(sys.argv[1], sys.argv[2], sys.argv[3:])
