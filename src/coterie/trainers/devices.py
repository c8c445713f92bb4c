"""What the clients' work is computed on: the processor or a graphics card, and whether bfloat16 works there.

Some virtual machines announce AMX and do not grant it. There a bfloat16 product ends the process with an illegal
instruction, or leaves oneDNN unable to compute any convolution afterwards. Neither the flags nor the operating system
tell: only running the instructions does, and only a child process can be risked for that.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from typing import Literal

import torch

from coterie.errors import ConfigError

CPU = torch.device("cpu")
Support = Literal["native", "emulated", "broken"]
PROBE_SECONDS = 120.0
PROBE = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
a, b = torch.randn(64, 64), torch.randn(64, 64)
product = (a.bfloat16() @ b.bfloat16()).float()
assert (product - a @ b).norm() < 0.05 * (a @ b).norm(), "a bfloat16 product is wrong"
net, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)), torch.randn(5, 3, 8, 8)
before = net(x)
with torch.autocast("cpu", torch.bfloat16):
    net(x).float().sum().backward()
assert torch.allclose(net(x), before), "bfloat16 changed what float32 computes"
"""
"""What the child process runs: products and convolutions in bfloat16, then float32 again, as training would."""


def choose_device(name: str) -> torch.device:
    """The device called auto, cpu, cuda or cuda:N; "auto" is CUDA where torch sees it, else the processor."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda", 0) if count else CPU
    match = re.fullmatch(r"cpu|cuda(?::(\d{1,3}))?", name) if isinstance(name, str) else None
    if match is None:
        raise ConfigError(f"device={name!r}: expected auto, cpu, cuda or cuda:N")
    if name == "cpu":
        return CPU
    number = int(match[1] or 0)
    if number >= count:
        seen = f"cuda:0 to cuda:{count - 1} only" if count else "no CUDA device on this machine"
        raise ConfigError(f"device={name!r}: torch sees {seen}: use one that is there, or 'auto'")
    return torch.device("cuda", number)


@cache
def bfloat16_support(probe: str = PROBE) -> Support:
    """Whether the processor multiplies bfloat16 itself, torch does it for the processor, or it does not work at all."""
    try:
        found = subprocess.run(
            [sys.executable, "-c", probe], capture_output=True, timeout=PROBE_SECONDS, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return "broken"
    if found != 0:
        return "broken"
    capabilities = torch.cpu.get_capabilities()
    native = any(bool(capabilities.get(name)) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return "native" if native else "emulated"


def require_bfloat16() -> Support:
    """How bfloat16 is supported here; ConfigError where it does not work."""
    support = bfloat16_support()
    if support == "broken":
        raise ConfigError(
            "precision='bf16': bfloat16 does not work on this processor (a trial in a child process failed): use "
            "precision='float32', or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment and try again"
        )
    return support
