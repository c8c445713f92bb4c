"""Advice in words and numbers: the right way to share, its cost, and the same evidence as a diagnosis."""

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
from coterie_advice import advise, diagnose
from coterie_advice.advising import next_command

PLAN = {"model": "mlp:hidden=32", "rounds": 60, "lr": 0.1, "epochs": 3, "batch_size": 32, "workers": 1}


@pytest.mark.parametrize(("kind", "groups", "method"), [("permuted", 2, "ifca:k=2"), ("iid", 1, "fedavg")])
def test_the_right_way_is_recommended(kind: str, groups: int, method: str) -> None:
    data = find_scenario(f"digits-{kind}").build(clients=8, samples=60, groups=groups, seed=5)
    found = advise(make_config(PLAN), federation=data)
    assert found.method == method
    options = ", ".join(f"{key}={value!r}" for key, value in PLAN.items())
    assert found.command == f"coterie.run({method!r}, federation, {options})"


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
    assert plain.sharing == other.sharing
    assert plain.method == other.method


def test_a_method_that_cannot_run_gives_way_to_the_next() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for i in range(12):  # a slope of its own for each client, around a common one
        x = torch.randn(60, 3, generator=generator)
        y = (x @ (torch.ones(3) + torch.randn(3, generator=generator)))[:, None]
        clients.append(Client(f"c{i}", Split(x[:50], y[:50]), Split(x[50:], y[50:]), Split(x[:5], y[:5])))
    found = advise(make_config(PLAN | {"model": "linear"}), federation=Federation(clients, 0))
    assert found.method == "ditto"
    assert "the whole model" in found.refused["fedper"]
    assert "fedper cannot run here" in str(found)


def test_of_sequences_auto_is_advised_which_decides_while_it_trains() -> None:
    x = torch.randint(0, 6, (30, 5), generator=torch.Generator().manual_seed(0))
    parts = [Split(x[a:b], x[a:b]) for a, b in ((0, 20), (20, 25), (25, 30))]
    plan = {"model": "lstm:embedding=4,hidden=4", "rounds": 5, "lr": 0.5, "epochs": 1, "workers": 1}
    found = advise(make_config(plan), federation=Federation([Client(f"c{i}", *parts) for i in range(4)], 6))
    assert found.sharing is None
    assert found.method == "auto"


def test_one_client_has_nobody_to_share_with() -> None:
    data = find_scenario("digits-iid").build(clients=1, samples=20, seed=0)
    with pytest.raises(ConfigError, match="at least two"):
        advise(make_config(PLAN), federation=data)


@pytest.mark.parametrize(("kind", "groups"), [("permuted", 2), ("iid", 1), ("dirichlet", 1)])
def test_advice_diagnosis_and_auto_say_the_same_and_what_their_numbers_say(kind: str, groups: int) -> None:
    data = find_scenario(f"digits-{kind}").build(clients=8, groups=groups, seed=3)
    plan = make_config(PLAN | {"rounds": 8})
    advice, diagnosis = advise(plan, federation=data), diagnose(plan, federation=data)
    sharing = advice.sharing
    assert sharing is not None
    for line in sharing.words():
        assert f"  {line}" in advice.words()
        assert f"  {line}" in diagnosis.words()
    told = coterie.run("auto", data, **PLAN | {"rounds": 1}).history[0].events[0].text  # type: ignore[arg-type]
    assert told == sharing.sentence()
    for way in sharing.ways:
        sure = way.gain.p_value <= sharing.level
        assert way.chosen <= sure
        assert ("not surely" in way.sentence(sharing.level)) != way.chosen
    several = any(way.chosen for way in sharing.ways if way.kind == "clusters")
    assert not (several and diagnosis.verdict == "congruent")
    assert (advice.method == "fedavg") == (sharing.chosen is None)


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
    assert "Run ifca:k=2: held-out data surely says 2 models" in told.out
    last = told.out.rstrip().splitlines()[-1].strip()
    assert last.startswith("coterie run --method ifca:k=2 --scenario digits-permuted")
    assert "comparing ways to share models on 6 clients" in told.err
    main(["advise", *given, "--workers", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["method"] == "ifca:k=2"
    assert [way["option"] for way in found["sharing"]["ways"] if way["chosen"]][:1] == [2]
    with pytest.raises(SystemExit):
        main(["advise", "--scenario", "digits-permuted", "--clients", "none"])
    assert capsys.readouterr().err.count("\n") == 1
