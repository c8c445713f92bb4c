"""The bytes of a run: what its method sent before, during and after the rounds, once, and nothing of the scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.methods import Server
from coterie.methods.fedavg import FedAvg, State
from coterie.tasks import Evaluate
from coterie.tasks.wire import task_bytes

OPTIONS: dict[str, Any] = {"scenario": "xor", "clients": 4, "samples": 20, "rounds": 3, "workers": 1}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has FedAvg ask all clients once before the first round and once after the last; the bytes of each time."""
    sent: list[int] = []
    start = FedAvg.start

    def ask(state: State, server: Server) -> State:
        task = Evaluate(state.model[None], "train")
        sent.append(len(list(server.ask_all(server.clients, task))) * task_bytes(task, server.layout))
        return state

    monkeypatch.setattr(FedAvg, "start", lambda method, server: ask(start(method, server), server))
    monkeypatch.setattr(FedAvg, "finish", lambda method, state, server: ask(state, server), raising=False)
    return sent


def test_bytes_before_and_after_the_rounds_are_counted_once(sent: list[int], tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped = coterie.run("fedavg", **OPTIONS, max_bytes=1, out=out)
    again = coterie.resume(out)
    whole = coterie.resume(out, max_bytes="1GB")
    assert [len(result.history) for result in (stopped, again, whole)] == [1, 1, 3]
    assert len(sent) == 4  # one start, and an end for each of the three
    for result in (stopped, again, whole):
        found = result.summary.bytes
        # What was sent before the first round is in its record.
        assert found.down == sum(record.bytes.down for record in result.history) + sent[1]
        assert found.up > sum(record.bytes.up for record in result.history)
    assert stopped.summary.bytes == again.summary.bytes


@pytest.mark.parametrize("method", ["fedavg", "ifca:k=2,init=random,hide_choice=true"])
def test_scores_are_no_part_of_the_bytes(method: str) -> None:
    given = OPTIONS | ({"secure_sums": True} if "hide" in method else {"participation": 0.5})
    rare, auto, always = (coterie.run(method, **given, evaluate_every=every) for every in (3, "auto", 1))
    assert [record.bytes for record in rare.history] == [record.bytes for record in always.history]
    assert [record.bytes for record in rare.history] == [record.bytes for record in auto.history]
    assert rare.summary.bytes == always.summary.bytes == auto.summary.bytes
