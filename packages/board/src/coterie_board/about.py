"""Where and by what a board was computed: command, commit, machine, date."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie import __version__


def about_this_run(command: str, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What to print with the results; a board that is added to keeps what was said of it, as `base`."""
    found: dict[str, Any] = {
        "command": command,
        "commit": _commit(),
        "version": __version__,
        "machine": f"{_processor()}, {os.cpu_count()} cores, one thread per run",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    return found | ({"base": dict(before)} if before else {})


def _commit() -> str | None:
    """The commit of the source, where it is a clone."""
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
