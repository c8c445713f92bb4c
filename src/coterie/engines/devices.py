"""The device that the clients' work is computed on: the processor, or a graphics card that torch can use."""

from __future__ import annotations

import re

import torch

from coterie.errors import ConfigError

CPU = torch.device("cpu")


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
