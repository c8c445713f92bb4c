"""A run in a process of its own, forked so that it starts at once, and what can be done to it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

from coterie.cli import main

PATIENCE = 60.0
"""Seconds after which a run that should have ended hangs."""
CAPABILITY_VERSION = 0x20080522
OVERRIDE = 0b110
"""The capabilities by which root may write where rights forbid it, and read."""


class Child:
    """A command of Coterie in a forked process; `prepare` is called in it first."""

    def __init__(self, words: list[str], log: Path, prepare: Callable[[], None] = lambda: None) -> None:
        self.log = log
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._be_the_child(words, prepare)

    def _be_the_child(self, words: list[str], prepare: Callable[[], None]) -> None:
        code = 1
        try:
            os.setsid()
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            prepare()
            try:
                main(words)
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
        finally:
            os._exit(code)

    def wait(self, seconds: float = PATIENCE) -> int | None:
        """The exit code (a signal's is negative), or None where it has not ended by then."""
        deadline = time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                return None
            else:
                time.sleep(0.002)
        return self.code

    def kill(self) -> None:
        """End it and its workers at once."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def workers(self) -> list[int]:
        """The process ids of its workers."""
        with contextlib.suppress(OSError):
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    def said(self) -> str:
        """All that it printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def obey_rights() -> None:
    """Take from root the capability to write where the rights forbid it; others never have it."""
    libc = ctypes.CDLL(None)
    header = ctypes.create_string_buffer(struct.pack("Ii", CAPABILITY_VERSION, 0))
    data = ctypes.create_string_buffer(24)
    if libc.capget(header, data) == 0:
        words = list(struct.unpack("6I", data.raw))
        words[0] &= ~OVERRIDE
        libc.capset(header, ctypes.create_string_buffer(struct.pack("6I", *words)))
