"""Files of a run folder as the page may read them: regular ones only, never what a link points to."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

Stamp = tuple[int, int, int]
"""Inode, time and size: together they show whether a file is still the one that was read."""


def open_plain(path: Path) -> BinaryIO:
    """The file, to be read; OSError for a link, a pipe or a device, which would lead elsewhere or block the watcher."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path}: not a regular file")
    return os.fdopen(descriptor, "rb")


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of a file or folder; None where there is none, or a link in its place."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return (status.st_ino, status.st_mtime_ns, status.st_size) if plain else None


def is_elsewhere(path: Path) -> bool:
    """Whether there is something of that name that is no regular file, such as a link."""
    return os.path.lexists(path) and stamp_of(path) is None
