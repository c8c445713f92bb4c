"""How a worker's process treats memory that it frees."""

from __future__ import annotations

import ctypes
import platform

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""glibc's numbers for what `mallopt` can set."""


def keep_freed_memory() -> bool:
    """Have glibc reuse freed memory instead of returning it to the system; False where there is no glibc.

    Memory that comes back from the system is cleared page by page, a fifth of the time of a convolutional network on
    batches of 100. The process stays as large as it once was: this is for workers, not for the user's own process.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    # 32 MB is the largest threshold that glibc takes; larger tensors still come from the system.
    settings = {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}
    return all(libc.mallopt(name, value) == 1 for name, value in settings.items())
