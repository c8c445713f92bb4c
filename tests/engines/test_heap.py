"""Workers keep the memory they free."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

TRIAL = """
import resource, torch
{first}
for _ in range(5):
    torch.zeros(2**22)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    torch.zeros(2**22), torch.zeros(2**21)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(first: str) -> int:
    done = subprocess.run([sys.executable, "-c", TRIAL.format(first=first)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is what is set")
def test_freed_memory_is_used_again_instead_of_asked_for_anew() -> None:
    kept = faults("from coterie.engines.heap import keep_freed_memory; assert keep_freed_memory()")
    assert kept < 3000
    # Left to itself, glibc sometimes keeps the memory too.
    assert any(faults("") > 4000 for _ in range(4))
