"""Hostile clients in a simulation: each attack does what it says, and the command tells what it cost."""

from __future__ import annotations

import importlib
import json
from statistics import fmean

import pytest
import torch
from click.testing import CliRunner

from coterie.errors import ConfigError
from coterie.runs.assemble import make_federation
from coterie.runs.config import make_config
from coterie_attacks.attacks import (
    ATTACKS,
    AttackResult,
    as_markdown,
    attacked_run,
    choose_hostile,
    find_attack,
    poisoned,
    with_trigger,
)

SMALL = {"scenario": "digits-iid", "clients": 8, "rounds": 6, "model": "mlp:hidden=16", "workers": 1}


def test_hostile_clients_are_drawn_from_the_seed():
    federation, _ = make_federation(make_config(SMALL))
    assert choose_hostile(federation, 3, 1) == choose_hostile(federation, 3, 1)
    assert choose_hostile(federation, 3, 1) != choose_hostile(federation, 3, 2)
    assert choose_hostile(federation, 0, 1) == ()
    with pytest.raises(ConfigError, match="at least one must be honest"):
        choose_hostile(federation, 8, 1)


def test_poison_changes_the_hostile_clients_training_data_only():
    federation, _ = make_federation(make_config(SMALL))
    first = federation.ids[0]
    flipped = poisoned(federation, ATTACKS["label-flip"], [first])
    assert torch.equal(flipped[first].train.y, 9 - federation[first].train.y)
    assert torch.equal(flipped[first].test.y, federation[first].test.y)
    other = federation.ids[1]
    assert torch.equal(flipped[other].train.y, federation[other].train.y)
    marked = poisoned(federation, ATTACKS["backdoor"], [first])[first].train
    half = len(marked) // 2
    assert (marked.y[:half] == 0).all()
    assert torch.equal(marked.x[:half], with_trigger(federation[first].train.x)[:half])


def mean(outcome):
    return fmean(outcome.accuracy.values())


@pytest.mark.parametrize(
    ("attack", "limits"),
    [
        ("scale", {"clip": "2x"}),
        ("sign-flip", {"clip": "1x"}),
    ],
)
def test_without_limits_one_client_ruins_a_run_and_with_them_it_does_not(attack, limits):
    clean = attacked_run(make_config(SMALL | {"method": "fedavg"}), "none", 0)
    bare = attacked_run(make_config(SMALL | {"method": "fedavg"}), attack, 1)
    guarded = attacked_run(make_config(SMALL | {"method": "fedavg"} | limits), attack, 1)
    assert clean.cut == 0
    assert mean(bare) < mean(clean) - 0.2
    assert mean(guarded) > mean(bare) + 0.2
    assert guarded.cut == 6


def test_a_claim_of_samples_that_nobody_has_is_not_believed():
    claimed = attacked_run(make_config(SMALL | {"method": "fedavg"}), "sample-count", 1)
    capped = attacked_run(make_config(SMALL | {"method": "fedavg", "weight_cap": 1}), "sample-count", 1)
    assert mean(capped) > mean(claimed) + 0.2


@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_every_attack_runs_against_clusters(attack):
    found = attacked_run(make_config(SMALL | {"method": "ifca:k=2", "rounds": 2}), attack, 1)
    assert 0 <= mean(found) <= 1
    assert (found.backdoor is not None) == (attack == "backdoor")


@pytest.mark.parametrize("attack", ["scale", "sign-flip", "long"])
def test_a_hostile_client_does_not_end_a_run_of_cfl(attack):
    """Its half-updates are in the steps that a check tries out, whose losses are then not finite."""
    config = make_config(SMALL | {"scenario": "digits-permuted", "method": "cfl", "rounds": 6})
    assert len(attacked_run(config, attack, 2).accuracy) == 6


def test_cfl_does_not_split_off_a_side_that_all_have_left():
    """With these liars a check finds a side inside a side whose only member moved away at the fork above."""
    options = {"scenario": "digits-permuted", "method": "cfl", "clients": 20, "samples": 120, "rounds": 26, "seed": 11}
    found = attacked_run(make_config(options | {"workers": 1, "evaluate_every": 10**6}), "little", 3)
    assert len(found.accuracy) == 17


def test_an_unknown_attack_gets_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'scale'"):
        find_attack("scael")


def test_the_table_says_what_an_attack_cost():
    rows = [
        AttackResult("fedavg", "mean", "none", 0, 0.9, 0.9, 0),
        AttackResult("fedavg", "mean", "backdoor", 1, 0.85, 0.9, 3, 0.25, 0.07),
    ]
    assert "| fedavg | mean | backdoor | 1 | 85.0 | 5.0 | 7.0 | 25 | 3 |" in as_markdown(rows)


WORDS = ["--scenario", "digits-iid", "--clients", "6", "--rounds", "1", "--attacks", "none,scale", "--hostile", "1"]


def test_an_attack_is_measured_on_the_clients_that_are_honest(tmp_path):
    command = importlib.import_module("coterie_attacks.command").attack
    result = CliRunner().invoke(command, [*WORDS, "--out", str(tmp_path / "t.json")])
    assert result.exit_code == 0, result.output
    none, scale = json.loads((tmp_path / "t.json").read_text())
    config = make_config({"scenario": "digits-iid", "clients": 6, "rounds": 1, "method": "fedavg", "seed": 0})
    clean = attacked_run(config, "none", 0).accuracy
    [bad] = choose_hostile(make_federation(config)[0], 1, 0)
    assert none["accuracy"] == none["without"] == pytest.approx(fmean(clean.values()))
    assert scale["without"] == pytest.approx(fmean(value for client, value in clean.items() if client != bad))


def test_the_command_writes_the_table(tmp_path):
    command = importlib.import_module("coterie_attacks.command").attack
    result = CliRunner().invoke(command, [*WORDS, "--rules", "mean,trimmed-mean(1)", "--out", str(tmp_path / "t.md")])
    assert result.exit_code == 0, result.output
    table = (tmp_path / "t.md").read_text()
    assert table.count("\n") == 2 + 4
    assert "| fedavg | trimmed-mean(1) | scale | 1 |" in table
