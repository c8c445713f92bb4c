"""A network on one machine without the waits: programs of Flower's that are forked when loaded, and short pauses.

Flower starts a process for every message and every run, most of whose time goes to imports. One process loads
everything once and forks for each of them. SuperLink and SuperNodes find it through small programs of the same names
that stand before Flower's own on their path; if none answers there, Flower's own is started. Every message still has a
process of its own, with the arguments, environment and output that Flower gave it. Flower's code also sleeps up to
three seconds between two looks for messages, which spares a SuperLink with many nodes; on the loopback that is most of
a round.

Of Flower this uses its installed programs alone. Run by its path this file needs nothing but the standard library,
because it is started once for each message.
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
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

PROGRAMS = ("flwr-clientapp", "flwr-serverapp")
MOST = 2**20
"""Bytes that the arguments and the environment of a call may take."""
LONGEST_PAUSE = 0.2
"""Seconds that Flower's code waits on the loopback before it looks again."""


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
        pass  # no process is there, yet or any more
    os.execv(flowers_own, [flowers_own, *arguments])


def load_program(name: str) -> Callable[[], object]:
    """The function that an installed program runs."""
    from importlib.metadata import entry_points

    [found] = entry_points(group="console_scripts", name=name)
    function: Callable[[], object] = found.load()
    return function


def shorten_pauses(longest: float = LONGEST_PAUSE, package: str = "flwr") -> None:
    """Let `time.sleep` last no longer than that when called by a package's own code, in this process."""
    sleep = time.sleep

    def shortened(seconds: float) -> None:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        ours = caller.partition(".")[0] == package
        sleep(min(seconds, longest) if ours else seconds)

    time.sleep = shortened  # type: ignore[assignment]


def start_program(name: str, arguments: list[str]) -> None:
    """Be that program, with short pauses."""
    shorten_pauses()
    sys.argv = [name, *arguments]
    load_program(name)()


def serve(door: str) -> None:
    """Load what the apps need and answer calls, each in a fork, until the parent of this process ends."""
    shorten_pauses()
    programs = {name: load_program(name) for name in PROGRAMS}
    with contextlib.suppress(ImportError):
        import httpcore  # noqa: F401  httpx loads it when it is first used, which would be in every fork

    import coterie.flower.client
    import coterie.flower.server  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the forks are not waited for
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


def _answer(line: socket.socket, programs: Mapping[str, Callable[[], object]]) -> None:
    """In the fork: become what was called, and never return."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        name, arguments = _take_over(line)
        sys.argv = [name, *arguments]
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(name)  # the name that lists of processes show
        _reseed()
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


def _take_over(line: socket.socket) -> tuple[str, list[str]]:
    """Take the caller's output, environment and folder; the name and the arguments of what was called."""
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
    return name, arguments


def _reseed() -> None:
    """Forks must not share the state of generators without a seed."""
    import numpy as np
    import torch

    np.random.seed(None)
    torch.seed()


def main(words: list[str]) -> None:
    """`DOOR` serves, `DOOR PROGRAM …` calls, `--start PROGRAM …` starts a program with short pauses."""
    if words[0] == "--start":
        start_program(words[1], words[2:])
    elif len(words) == 1:
        serve(words[0])
    else:
        call(words[0], words[1], words[2:])


if __name__ == "__main__":
    main(sys.argv[1:])
