"""A SuperNode on the loopback does not wait for seconds."""

from __future__ import annotations

import inspect
import time
from types import ModuleType

import pytest

from coterie.flower.prompt_node import ShortPauses, shorten_pauses


def test_pauses_are_cut_and_everything_else_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    module = ModuleType("node")
    module.time = time  # type: ignore[attr-defined]
    assert shorten_pauses(module, 0.2)
    module.time.sleep(3)
    module.time.sleep(0.1)
    assert slept == [0.2, 0.1]
    assert module.time.monotonic is time.monotonic
    assert isinstance(module.time, ShortPauses)


def test_a_module_without_time_is_left_alone() -> None:
    module = ModuleType("node")
    assert not shorten_pauses(module)
    assert not hasattr(module, "time")


def test_the_pause_is_still_where_flower_has_it() -> None:
    from flwr.supernode import start_client_internal

    assert start_client_internal.time is time
    assert "time.sleep(" in inspect.getsource(start_client_internal)
