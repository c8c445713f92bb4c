"""The one way the command writes: on a terminal as wide as it is, into a file or a pipe wide enough not to cut."""

from __future__ import annotations

import os

from rich.console import Console

PIPE_WIDTH = 140


def make_console(*, stderr: bool = False) -> Console:
    """A console that leaves numbers and paths in words uncoloured."""
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)
    return console
