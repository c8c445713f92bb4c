"""All runs under a folder: found, watched and forgotten as they come and go."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from coterie.errors import RunError
from coterie_views.live.files import stamp_of
from coterie_views.live.watched import WatchedRun, read_config

DEPTH = 3
RESCAN_SECONDS = 2.0
"""How often the folders are searched for new runs; known ones are looked at every time."""


class Library:
    """The runs under `root` by name; a name is the run's path below `root`, or `.` for the root itself."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RunError(f"{root}: no such folder: give a run's folder, or one that holds runs")
        self.root = root
        self.runs: dict[str, WatchedRun] = {}
        self._next_scan = 0.0

    def poll(self) -> tuple[list[str], list[str]]:
        """Look at everything once: the names of the runs that changed, and of those that are gone."""
        gone = []
        if time.monotonic() >= self._next_scan:
            self._next_scan = time.monotonic() + RESCAN_SECONDS
            for path in run_folders(self.root):
                name = printable(os.path.relpath(path, self.root))
                if name not in self.runs:
                    self.runs[name] = WatchedRun(path, name)
        locks = locked_inodes()
        changed = []
        for name, run in list(self.runs.items()):
            if stamp_of(run.path / "config.json") is None or run.path.is_symlink():
                del self.runs[name]
                gone.append(name)
            elif run.poll(locks):
                changed.append(name)
        return changed, gone


def run_folders(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The run folders at and below `root`, in order of their names; links are not followed, hidden folders skipped."""
    if is_run_folder(root):
        yield root
        return
    if depth == 0:
        return
    try:
        inside = sorted(
            entry.name
            for entry in os.scandir(root)
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
        )
    except OSError:
        return
    for name in inside:
        yield from run_folders(root / name, depth - 1)


def is_run_folder(path: Path) -> bool:
    """Does the folder hold the config of a run?"""
    config = read_config(path)
    if config is None:  # damaged: what else a run leaves shows whether it was one
        return stamp_of(path / "config.json") is not None and stamp_of(path / "history.jsonl") is not None
    return "method" in config


def printable(name: str) -> str:
    """The name with a mark for every byte that is no text, so that it can travel as JSON."""
    return os.fsencode(name).decode("utf-8", errors="replace")


def locked_inodes() -> frozenset[int] | None:
    """The inodes of all files under a lock, or None where the system does not list them.

    Trying the lock would show it too, but a run that starts in that instant would find its folder in use.
    """
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    found = set()
    for line in lines:
        place = [word for word in line.split() if word.count(":") == 2]
        if place:
            found.add(int(place[0].rpartition(":")[2]))
    return frozenset(found)
