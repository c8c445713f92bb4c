"""The starts of k models: how they are written, and models drawn again until enough clients choose each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import coterie
from coterie.errors import ConfigError, RunError
from coterie.methods import IFCA, Server, make_method
from coterie.methods.placing import lowest_loss
from coterie.methods.sharing import shared_spans
from coterie.methods.starts import STARTS, PerturbedStart, RandomStart, RedrawnStart, Seed, WorstFittedStart, _Seeding
from coterie.runs.assemble import assemble
from coterie.runs.config import make_config

SMALL: dict[str, Any] = {
    "scenario": "digits-rotated", "clients": 8, "samples": 40, "groups": 2, "model": "mlp:hidden=16", "rounds": 2,
    "workers": 1,
}  # fmt: skip


def server_for(**options: Any) -> Server:
    return assemble(make_config(SMALL | options))[0].server


def takers(models: torch.Tensor, server: Server) -> list[int]:
    """How many clients choose each model."""
    found = Counter(lowest_loss(dict(enumerate(models)), server.clients, server).values())
    return [found[j] for j in range(len(models))]


def test_starts_are_written_as_name_and_values() -> None:
    assert STARTS.make("k-means++(2)") == WorstFittedStart(rounds=2)
    assert STARTS.make("perturbed") == PerturbedStart(scale=0.1)
    assert STARTS.make("redrawn(0.2, draws=7)") == RedrawnStart(share=0.2, draws=7)


@pytest.mark.parametrize(
    ("init", "words"),
    [
        ("perturbd", "did you mean 'perturbed'"),
        ("perturbed(", "init='perturbed\\('"),
        ("perturbed(0)", "init=perturbed, option scale=0: expected number above 0"),
        ("k-means++(rounds=many)", "expected whole number from 1 to 1000"),
        ("random(3)", "init=random has no option"),
        ("redrawn(shares=0.1)", "has no option 'shares'"),
    ],
)
def test_a_start_that_is_none_fails_at_once(init: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_method(f"ifca:init={init}")


@pytest.mark.parametrize(("k", "clients", "least"), [(2, 8, 3), (4, 10, 1)])
def test_models_are_drawn_until_the_authors_share_of_clients_chooses_each(k: int, clients: int, least: int) -> None:
    drawn_again = 0
    for seed in range(1, 7):
        server = server_for(seed=seed, clients=clients, groups=k)
        models = RedrawnStart().models(server, k, 0)
        assert min(takers(models, server)) >= least
        first = RandomStart().models(server, k, 0)
        assert torch.equal(models, first) == (min(takers(first, server)) >= least)
        drawn_again += not torch.equal(models, first)
    assert drawn_again


def test_every_draw_is_sent_and_answered() -> None:
    server = server_for(seed=1)
    attempts = next(a for a in range(100) if min(takers(RandomStart().models(server, 2, a), server)) >= 3) + 1
    assert attempts > 1
    server.traffic.drain()
    RedrawnStart().models(server, 2, 0)
    down, up = server.traffic.drain()
    assert down == attempts * 8 * 2 * 4 * server.layout.size
    assert up == attempts * 8 * 2 * 8
    result = coterie.run("ifca:k=2,init=redrawn", seed=1, **SMALL)
    plain = coterie.run("ifca:k=2,init=random", seed=1, **SMALL)
    assert result.summary.bytes.down - plain.summary.bytes.down == down


def test_a_draw_asks_the_participants_of_one_round() -> None:
    server = server_for(participation=0.5)
    server.traffic.drain()
    RedrawnStart(share=0.0).models(server, 2, 0)
    assert server.traffic.drain()[0] == 4 * 2 * 4 * server.layout.size


def test_shared_layers_are_shared_in_every_draw() -> None:
    server = server_for(seed=4)
    method = IFCA(k=2, init="redrawn", clustered="last")
    models = method.start(server).models
    assert min(takers(models, server)) >= 3
    assert all(torch.equal(models[0, place], models[1, place]) for place in shared_spans("last", server))


def test_restarts_draw_by_themselves() -> None:
    server = server_for(seed=1)
    one, two = (RedrawnStart().models(server, 2, draw) for draw in (0, 1))
    assert not torch.equal(one, two)


def test_the_limit_of_draws_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(RunError, match=r"in none of 3 draws .* redrawn\(0\.25\), more draws, as .*draws=30"):
        RedrawnStart(share=0.5, draws=3).models(server_for(seed=2, scenario="digits-iid"), 2, 0)


def test_of_four_models_each_must_be_chosen_by_a_tenth_as_in_the_authors_code() -> None:
    with pytest.raises(RunError, match="each of 4 models chosen by 10% of the clients"):
        RedrawnStart(draws=1).models(server_for(seed=0, scenario="digits-iid"), 4, 0)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ifca:k=3,init=redrawn", "shares for k=2 and 4, write redrawn"),
        ("ifca:k=3,init=redrawn(0.4)", "give less than 0.33"),
    ],
)
def test_a_share_that_is_unknown_or_cannot_be(spec: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_method(spec).start(server_for())


class Scripted(_Seeding):
    """The search, with one candidate that is known beforehand."""

    def next(self, best: Mapping[str, float]) -> Seed | None:
        return Seed("b", torch.zeros(1), {"a": 9.0, "b": 0.0, "c": 0.5, "lonely": 9.0})


def test_a_seed_that_serves_its_own_client_alone_gives_way_to_one_that_two_need() -> None:
    first = Seed("a", torch.zeros(1), {"a": 0.0, "b": 4.0, "c": 4.0, "lonely": 5.0})
    lonely = Seed("lonely", torch.zeros(1), {"a": 9.0, "b": 9.0, "c": 9.0, "lonely": 0.0})
    search = Scripted(server_for(), ["b", "c"], 0, 1)
    assert [seed.client for seed in search._replaced(lonely, [first, lonely])] == ["a", "b"]
    assert search.untried == ["c"]
    assert search._replaced(lonely, [lonely]) == [lonely]  # an only one stays


def test_a_seed_gains_what_it_lowers_the_best_losses_by() -> None:
    seed = Seed("a", torch.zeros(1), {"a": 0.5, "b": 3.0, "new": 2.0})
    assert seed.gains({"a": 2.0, "b": 2.0}) == [1.5, 0.0, 0.0]


def test_a_redrawn_start_looks_at_clients_and_is_refused_where_they_are_hidden() -> None:
    with pytest.raises(ConfigError, match="hide_choice=True with init=redrawn"):
        make_method("ifca:k=2,init=redrawn,hide_choice=true")
    with pytest.raises(ConfigError, match="decide by exact losses"):
        coterie.run("ifca:k=2,init=redrawn", dp_noise=1.0, **SMALL)
