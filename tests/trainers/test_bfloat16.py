"""Whether bfloat16 works is found out in a child process, so that no processor can break the one that asks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.engines import LocalEngine
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.trainers.devices import PROBE, bfloat16_support

ILLEGAL_INSTRUCTION = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
NO_PRIMITIVE = "raise RuntimeError('could not create a primitive')"
CHANGED = PROBE.replace("net(x), before", "net(x) + 1, before")


@pytest.mark.parametrize("probe", [ILLEGAL_INSTRUCTION, NO_PRIMITIVE, CHANGED])
def test_a_trial_that_dies_or_computes_wrongly_says_that_bfloat16_is_broken(probe: str) -> None:
    assert bfloat16_support(probe) == "broken"


def test_a_processor_without_the_instructions_emulates_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CHANGED != PROBE  # the test above changes something
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert bfloat16_support("pass  # without bfloat16") == "emulated"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert bfloat16_support("pass  # with bfloat16") == "native"


def engine() -> LocalEngine:
    data = Split(torch.randn(4, 3, 4, 4), torch.tensor([0, 1, 0, 1]))
    return LocalEngine(
        Federation([Client("a", data, data, data)], 2),
        lambda _: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 2)),
        precision="bf16",
    )


def test_bf16_is_one_clear_error_where_it_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.trainers.devices.bfloat16_support", lambda: "broken")
    with pytest.raises(ConfigError, match=r"precision='bf16'.*does not work on this processor.*float32"):
        engine()


def test_bf16_is_slow_and_says_so_where_it_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.trainers.devices.bfloat16_support", lambda: "emulated")
    with pytest.warns(UserWarning, match="slower than 'float32'"):
        engine()
