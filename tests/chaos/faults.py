"""The faults: each spoils a run in some way and says what became of it."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coterie
from coterie.engines import pool
from coterie.errors import CoterieError
from fuzz.folders import spoil, told

from .child import Child, obey_rights

METHODS = ("ifca:k=2", "cfl")
OPTIONS: dict[str, Any] = {"scenario": "digits-permuted", "clients": 16, "samples": 20, "groups": 2, "rounds": 8}
MODEL = "mlp:hidden=8"


class Lost(Exception):
    """A fault that was not survived, and why."""


@dataclass
class Scene:
    """Where faults happen, and what the runs give without them."""

    folder: Path
    expected: dict[str, Any]
    seconds: float
    """How long a run takes."""
    disk: Path | None
    """A small file system of its own, where one can be mounted."""

    def run(self, method: str, out: Path, workers: int, prepare: Callable[[], None] = lambda: None) -> Child:
        """A run as a command, in a new folder."""
        shutil.rmtree(out, ignore_errors=True)
        words = ["run", "--quiet", "--method", method, "--model", MODEL, "--workers", str(workers), "--out", str(out)]
        words += [f"--{key}={value}" for key, value in OPTIONS.items()]
        return Child(words, self.folder / "log", prepare)

    def moment(self, random: random.Random) -> None:
        """Wait for some part of a run's time."""
        time.sleep((0.1 + 0.8 * random.random()) * self.seconds)

    def check(self, child: Child, method: str, out: Path, *, whole: bool) -> str:
        """The run ended well or was ended; its resumption gives the expected result.

        With `whole` false the fault took files away, so that a refusal in words is right too.
        """
        if child.wait() is None:
            child.kill()
            raise Lost(f"hangs: {child.said()[-300:]}")
        if child.code == 1 or (child.code or 0) > 2 or "Traceback" in child.said():
            raise Lost(f"exit {child.code}: {child.said()[-400:]}")
        ended = {0: "went on", 2: "refused, then resumed"}.get(child.code, "killed, then resumed")
        if not (out / "config.json").exists():
            ended = "begun again"
            if child.code == 0:
                raise Lost("exit 0 without a result")
            if not whole:
                return "refused in words"
            child = self.run(method, out, 1)
            if child.wait() != 0:
                raise Lost(f"nothing was begun, and it cannot be begun again: {child.said()[-300:]}")
        try:
            result = told(coterie.resume(out, workers=1))
        except CoterieError as problem:
            if whole:
                raise Lost(f"cannot be resumed: {problem}") from problem
            return "damage named"
        if result != self.expected[method]:
            raise Lost("another result")
        return ended


def kill(scene: Scene, random: random.Random) -> str:
    """The whole run is killed, sometimes more than once."""
    method, out = random.choice(METHODS), scene.folder / "run"
    child = scene.run(method, out, random.choice([1, 2]))
    scene.moment(random)
    child.kill()
    while random.random() < 0.4 and (out / "config.json").exists():
        child = Child(["resume", str(out), "--quiet", "--workers", "2"], scene.folder / "log")
        scene.moment(random)
        child.kill()
    return scene.check(child, method, out, whole=True)


def _to_a_worker(scene: Scene, random: random.Random, what: signal.Signals) -> str:
    method, out = random.choice(METHODS), scene.folder / "run"

    def prepare() -> None:
        pool.LOOK_SECONDS = 0.2

    child = scene.run(method, out, 2, prepare)
    hit = 0
    for _ in range(random.randint(1, 3)):
        scene.moment(random)
        workers = child.workers()
        if workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(random.choice(workers), what)
                hit += 1
    if child.wait() not in (0, None):
        raise Lost(f"the run ended with {child.code}: {child.said()[-300:]}")
    ended = scene.check(child, method, out, whole=True)
    return f"{ended} with others" if hit else f"{ended}, none was there"


def kill_worker(scene: Scene, random: random.Random) -> str:
    """Workers are killed."""
    return _to_a_worker(scene, random, signal.SIGKILL)


def stop_worker(scene: Scene, random: random.Random) -> str:
    """Workers are stopped, and nobody wakes them."""
    return _to_a_worker(scene, random, signal.SIGSTOP)


def full_disk(scene: Scene, random: random.Random) -> str:
    """The disk is full, then there is room again."""
    method = random.choice(METHODS)
    if scene.disk is None:
        return _limited(scene, random, resource.RLIMIT_FSIZE, random.randrange(10, 60_000))
    out = scene.disk / "run"
    shutil.rmtree(out, ignore_errors=True)
    _resize(scene.disk, random.randrange(8, 80) * 1024)
    try:
        child = scene.run(method, out, 1)
        if child.wait() is None:
            child.kill()
            raise Lost("hangs on a full disk")
    finally:
        _resize(scene.disk, 2**26)
    return scene.check(child, method, out, whole=True)


def _resize(disk: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def read_only(scene: Scene, random: random.Random) -> str:
    """The folder is made read-only in the middle of the run, then writable again."""
    method, out = random.choice(METHODS), scene.folder / "run"
    child = scene.run(method, out, 1, obey_rights)
    scene.moment(random)
    with contextlib.suppress(FileNotFoundError):
        out.chmod(0o555)
    child.wait()
    with contextlib.suppress(FileNotFoundError):
        out.chmod(0o755)
    return scene.check(child, method, out, whole=True)


def _limited(scene: Scene, random: random.Random, what: int, limit: int) -> str:
    method, out = random.choice(METHODS), scene.folder / "run"

    def prepare() -> None:
        resource.setrlimit(what, (limit, limit))

    child = scene.run(method, out, random.choice([1, 2]), prepare)
    return scene.check(child, method, out, whole=True)


def file_size(scene: Scene, random: random.Random) -> str:
    """No file may be longer than so much."""
    return _limited(scene, random, resource.RLIMIT_FSIZE, random.randrange(10, 60_000))


def few_files(scene: Scene, random: random.Random) -> str:
    """Few files may be open at once."""
    return _limited(scene, random, resource.RLIMIT_NOFILE, random.randrange(4, 16))


def little_memory(scene: Scene, random: random.Random) -> str:
    """Little more memory than the process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return _limited(scene, random, resource.RLIMIT_AS, pages * resource.getpagesize() + random.randrange(2**12, 2**25))


def damaged_file(scene: Scene, random: random.Random) -> str:
    """A file of a killed run is damaged, taken away or another run's."""
    method, out = random.choice(METHODS), scene.folder / "run"
    child = scene.run(method, out, 1)
    scene.moment(random)
    child.kill()
    if any(path.is_file() for path in out.rglob("*")):
        spoil(out, scene.folder / "other", random)
    if child.code == 0 and not (out / "config.json").exists():
        return "taken away after the end"  # by this fault, not by the run, which had ended before the kill
    return scene.check(child, method, out, whole=False)


def removed_file(scene: Scene, random: random.Random) -> str:
    """A file of the run, or the whole folder, is removed while it runs."""
    method, out = random.choice(METHODS), scene.folder / "run"
    child = scene.run(method, out, random.choice([1, 2]))
    scene.moment(random)
    if child.wait(0) is not None:
        return scene.check(child, method, out, whole=True)
    files = sorted(path for path in out.rglob("*") if path.is_file()) if out.exists() else []
    if files and random.random() < 0.8:
        random.choice(files).unlink(missing_ok=True)
    else:
        shutil.rmtree(out, ignore_errors=True)
    return scene.check(child, method, out, whole=False)


FAULTS: tuple[Callable[[Scene, random.Random], str], ...] = (
    kill,
    kill_worker,
    stop_worker,
    full_disk,
    read_only,
    file_size,
    few_files,
    little_memory,
    damaged_file,
    removed_file,
)
