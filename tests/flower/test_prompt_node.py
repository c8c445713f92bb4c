"""A SuperNode on the loopback does not wait for seconds."""

from __future__ import annotations

import inspect
import time
from types import ModuleType

import pytest

from coterie.flower.prompt_node import FIRST_RETRY, ShortPauses, shorten_pauses, shorten_retries


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


def test_retries_begin_at_once_and_other_functions_are_left_alone() -> None:
    def pull(*, tries: int = 3, initial_backoff: float = 1.0) -> tuple[int, float]:
        return tries, initial_backoff

    def push(*, tries: int = 3) -> int:
        return tries

    module = ModuleType("parts")
    vars(module).update(pull=pull, push=push, number=1)
    assert shorten_retries(module) == 1
    assert pull() == (3, FIRST_RETRY)
    assert push() == 3


def test_flower_still_retries_where_we_shorten_it() -> None:
    from flwr.supercore.inflatable import inflatable_utils
    from flwr.supernode import start_client_internal

    assert "initial_backoff" in inspect.signature(inflatable_utils.pull_objects).parameters
    assert start_client_internal.pull_objects is inflatable_utils.pull_objects


def test_the_pause_is_still_where_flower_has_it() -> None:
    from flwr.supernode import start_client_internal

    assert start_client_internal.time is time
    assert "time.sleep(" in inspect.getsource(start_client_internal)
