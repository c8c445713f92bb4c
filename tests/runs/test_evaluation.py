"""Who is evaluated when: all clients, or a round's participants."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import coterie
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.runs import metrics
from coterie.runs.config import make_config

MODEL = nn.Sequential(nn.Linear(4, 2))


def federation(clients: int = 10) -> Federation:
    generator = torch.Generator().manual_seed(0)

    def split(n: int) -> Split:
        return Split(torch.randn(n, 4, generator=generator), torch.randint(2, (n,), generator=generator))

    return Federation([Client(f"c{i}", split(8), split(2), split(6)) for i in range(clients)], 2)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients each evaluation asked."""
    counts: list[int] = []
    real = metrics.score_clients

    def counted(*arguments, **options):  # type: ignore[no-untyped-def]
        scores = real(*arguments, **options)
        counts.append(len(scores))
        return scores

    monkeypatch.setattr(metrics, "score_clients", counted)
    return counts


def test_by_default_participants_are_evaluated_every_round_and_all_now_and_then(asked: list[int]) -> None:
    result = coterie.run("fedavg", federation(), model=MODEL, rounds=7, participation=0.3, workers=1)
    assert asked == [3, 3, 10, 3, 3, 10, 10]
    assert [record.participants_only for record in result.history] == [n == 3 for n in asked]
    assert all(record.accuracy.mean is not None for record in result.history)
    assert [bool(record.assignment) for record in result.history] == [False, False, True, False, False, False, False]
    assert len(result.clients) == 10


def test_with_everybody_taking_part_all_are_evaluated_in_every_round(asked: list[int]) -> None:
    coterie.run("fedavg", federation(), model=MODEL, rounds=3, workers=1)
    assert asked == [10, 10, 10]


def test_a_number_means_all_clients_and_nothing_in_between(asked: list[int]) -> None:
    result = coterie.run("fedavg", federation(), model=MODEL, rounds=5, participation=0.3, evaluate_every=2, workers=1)
    assert asked == [10, 10, 10]
    assert [bool(record.metrics) for record in result.history] == [False, True, False, True, True]


def test_evaluating_changes_nothing_that_is_learnt(asked: list[int]) -> None:
    runs = [
        coterie.run("ifca:k=2", federation(), model=MODEL, rounds=4, participation=0.5, evaluate_every=every, workers=1)
        for every in ("auto", 1)
    ]
    assert len(asked) == 8
    assert runs[0].summary.accuracy == runs[1].summary.accuracy
    for one, other in zip(runs[0].models, runs[1].models, strict=True):
        assert torch.equal(one, other)


def test_the_participants_metrics_are_those_of_the_same_clients() -> None:
    everybody = coterie.run("fedavg", federation(), model=MODEL, rounds=2, participation=0.5, evaluate_every=1)
    sample = coterie.run("fedavg", federation(), model=MODEL, rounds=2, participation=0.5)
    assert sample.history[0].participants_only
    assert sample.history[0].accuracy != everybody.history[0].accuracy
    assert sample.history[1].accuracy == everybody.history[1].accuracy


@pytest.mark.parametrize("value", [0, -1, "often"])
def test_other_values_are_one_line(value: object) -> None:
    with pytest.raises(ConfigError, match="evaluate_every"):
        make_config({"evaluate_every": value})
    assert make_config({"evaluate_every": "3"}).evaluate_every == 3


@pytest.mark.parametrize("method", ["fedavg", "ifca:k=2"])
def test_scores_are_the_same_in_portions(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss_by_client() -> dict[tuple[str, int], float | None]:
        found = coterie.run(method, federation(), model=MODEL, rounds=2, workers=1).clients
        return {(row.client, row.cluster): row.loss for row in found}

    whole = loss_by_client()
    monkeypatch.setattr(metrics, "SCORED_AT_ONCE", 3)
    portions = loss_by_client()
    assert list(portions) == list(whole)
    assert list(portions.values()) == pytest.approx(list(whole.values()), rel=1e-5)
