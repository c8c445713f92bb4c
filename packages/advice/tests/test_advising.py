"""Advice end to end: what is recommended for federations with a known answer, in words, as JSON, with its cost."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
import torch

import coterie
from coterie.cli.main import main
from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError
from coterie.federation import Client, Federation, Split
from coterie.runs import make_config
from coterie_advice import advise
from coterie_advice.advising import next_command

PLAN = {"model": "mlp:hidden=32", "rounds": 60, "lr": 0.1, "epochs": 3, "batch_size": 32, "workers": 1}


@pytest.mark.parametrize(("kind", "groups", "method"), [("permuted", 2, "ifca:k=2"), ("iid", 1, "fedavg")])
def test_the_right_way_is_recommended(kind: str, groups: int, method: str) -> None:
    data = find_scenario(f"digits-{kind}").build(clients=8, samples=60, groups=groups, seed=5)
    found = advise(make_config(PLAN), federation=data)
    assert found.recommendation.method == method
    assert len(found.clusters) == (groups if groups > 1 else 0)
    assert (
        found.command
        == f"coterie.run({method!r}, federation, " + ", ".join(f"{k}={v!r}" for k, v in PLAN.items()) + ")"
    )


def test_bytes_are_those_of_the_run() -> None:
    data = find_scenario("digits-iid").build(clients=4, samples=40, seed=5)
    plan = PLAN | {"rounds": 3}
    found = advise(make_config(plan), federation=data)
    sent = coterie.run("fedavg", data, **plan).summary.bytes  # type: ignore[arg-type]
    assert found.cost.bytes == sent.up + sent.down
    assert found.cost.fedavg_bytes == pytest.approx(found.cost.bytes, rel=0.01)
    assert found.cost.seconds > 0


def test_test_data_is_not_looked_at() -> None:
    data = find_scenario("digits-swapped").build(clients=8, samples=60, groups=2, seed=6)
    spoilt = data.with_clients(
        [replace(c, test=Split(torch.zeros_like(c.test.x), torch.zeros_like(c.test.y))) for c in data]
    )
    plain, other = (advise(make_config(PLAN), federation=given) for given in (data, spoilt))
    assert plain.evidence == other.evidence
    assert plain.recommendation == other.recommendation


def test_a_method_that_cannot_run_gives_way_to_the_next() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for i in range(12):  # a slope of its own for each client, around a common one
        x = torch.randn(60, 3, generator=generator)
        y = (x @ (torch.ones(3) + torch.randn(3, generator=generator)))[:, None]
        clients.append(Client(f"c{i}", Split(x[:50], y[:50]), Split(x[50:], y[50:]), Split(x[:5], y[:5])))
    found = advise(make_config(PLAN | {"model": "linear"}), federation=Federation(clients))
    assert found.recommendation.kind in ("personal", "local")
    assert found.recommendation.method in ("ditto", "local")
    assert "the whole model" in found.refused["fedper"]
    assert "fedper cannot run here" in str(found)


def test_sequences_are_probed_by_a_few_rounds() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for i in range(4):
        x = torch.randint(0, 6, (30, 5), generator=generator)
        parts = [Split(x[a:b], x[a:b]) for a, b in ((0, 20), (20, 25), (25, 30))]
        clients.append(Client(f"c{i}", *parts))
    said: list[str] = []
    plan = {"model": "lstm:embedding=4,hidden=4", "rounds": 5, "lr": 0.5, "epochs": 1, "workers": 1}
    found = advise(make_config(plan), federation=Federation(clients, 6), say=said.append)
    assert found.evidence.one is None
    assert any("of one model" in line for line in said)
    assert found.words()[-1].strip().startswith("coterie.run(")


def test_one_client_has_nobody_to_share_with() -> None:
    data = find_scenario("digits-iid").build(clients=1, samples=20, seed=0)
    with pytest.raises(ConfigError, match="at least two"):
        advise(make_config(PLAN), federation=data)


def test_the_next_command_takes_over_what_was_given() -> None:
    config = make_config(
        {"data": "my sites/*.csv", "label": "y", "task": "regression", "lr": 0.05, "secure_sums": True}
    )
    words = shlex.split(next_command(config, "ifca:k=2"))
    assert words[:4] == ["coterie", "run", "--method", "ifca:k=2"]
    assert words[words.index("--data") + 1] == "my sites/*.csv"
    assert {"--regression", "--secure-sums"} <= set(words)


def test_the_command_in_words_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--scenario", "digits-permuted", "--clients", "6", "--groups", "2", "--samples", "60", "--rounds", "60"]
    main(["advise", *given, "--workers", "1"])
    told = capsys.readouterr()
    assert "Several models: 2 clusters" in told.out
    assert (
        told.out.rstrip()
        .splitlines()[-1]
        .strip()
        .startswith("coterie run --method ifca:k=2 --scenario digits-permuted")
    )
    assert "comparing ways to share models on 6 clients" in told.err
    main(["advise", *given, "--workers", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["recommendation"]["method"] == "ifca:k=2"
    assert found["evidence"]["gains"]["several"]["mean"] > 10
    with pytest.raises(SystemExit):
        main(["advise", "--scenario", "digits-permuted", "--clients", "none"])
    assert capsys.readouterr().err.count("\n") == 1
