"""The last round is evaluated once: the summary says what the last record says, unless the method has a `finish`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.engines import LocalEngine
from coterie.methods import make_method
from coterie.runs.records import Spread
from coterie.tasks import Evaluate, Reduction, ReplyBlock, Request
from method_specs import METHODS, spec_of

CLIENTS = 6
OPTIONS: dict[str, Any] = {
    "scenario": "digits-permuted",
    "clients": CLIENTS,
    "groups": 2,
    "model": "mlp:hidden=4",
    "workers": 1,
}


@dataclass
class Asked:
    """Counts the requests to evaluate models on test data, for each client."""

    by_client: Counter[str] = field(default_factory=Counter)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    counts, real = Asked(), LocalEngine.run

    def counted(
        self: LocalEngine, requests: Sequence[Request], reduce: Reduction | None = None
    ) -> Iterator[ReplyBlock]:
        for request in requests:
            if isinstance(request.task, Evaluate) and request.task.part == "test":
                counts.by_client[request.client] += 1
        return real(self, requests, reduce)

    monkeypatch.setattr(LocalEngine, "run", counted)
    return counts


@pytest.mark.parametrize("name", METHODS)
def test_every_round_is_evaluated_once(name: str, asked: Asked, tmp_path: Path) -> None:
    method = spec_of(name)
    finishes = hasattr(make_method(method), "finish")
    result = coterie.run(method, rounds=3, out=tmp_path / "run", **OPTIONS)
    assert set(asked.by_client.values()) == {4 if finishes else 3}
    assert len(asked.by_client) == CLIENTS
    last = result.history[-1]
    if not finishes:
        assert result.summary.metrics == last.metrics
    for metric, spread in result.summary.metrics.items():
        assert spread == Spread.of([row.metrics[metric] for row in result.clients], higher_is_better=metric != "loss")
    assert (name in ("auto", "cfl")) == finishes  # or this test has become an empty one for the others


def test_the_last_round_counts_whatever_the_pause_between_evaluations(asked: Asked) -> None:
    result = coterie.run("fedavg", rounds=4, evaluate_every=3, **OPTIONS)
    assert set(asked.by_client.values()) == {2}
    assert [bool(record.metrics) for record in result.history] == [False, False, True, True]
    assert result.summary.metrics == result.history[-1].metrics


def test_with_few_participants_all_clients_are_evaluated_in_the_end(asked: Asked) -> None:
    result = coterie.run("fedavg", rounds=3, participation=0.34, **OPTIONS)
    assert asked.by_client.total() == 2 + 2 + CLIENTS
    assert result.summary.metrics == result.history[-1].metrics


def test_evaluating_is_no_part_of_the_methods_traffic() -> None:
    often, seldom = (coterie.run("ifca:k=2,init=random", rounds=4, evaluate_every=every, **OPTIONS) for every in (1, 4))
    assert often.summary.bytes == seldom.summary.bytes
    assert often.summary.bytes.up == sum(record.bytes.up for record in often.history) > 0
    assert [record.bytes for record in often.history] == [record.bytes for record in seldom.history]
