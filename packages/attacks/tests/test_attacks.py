"""Hostile clients in a simulation: each attack does what it says, and the command tells what it cost."""

from __future__ import annotations

import importlib
import json
from statistics import fmean

import pytest
import torch
from click.testing import CliRunner

from coterie.errors import ConfigError
from coterie.methods import Aggregation
from coterie.parameters import Entry, Layout
from coterie.runs.assemble import make_federation
from coterie.runs.config import make_config
from coterie_attacks import crafting
from coterie_attacks.attacks import ATTACKS, choose_hostile, chosen_centroids, find_attack, poisoned, with_trigger
from coterie_attacks.frontier import AttackResult, as_markdown, attacked_run

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
    assert mean(bare) < mean(clean) - 0.2
    assert mean(guarded) > mean(bare) + 0.2


def test_a_claim_of_samples_that_nobody_has_is_not_believed():
    claimed = attacked_run(make_config(SMALL | {"method": "fedavg"}), "sample-count", 1)
    capped = attacked_run(make_config(SMALL | {"method": "fedavg", "weight_cap": 1}), "sample-count", 1)
    assert mean(capped) > mean(claimed) + 0.2


@pytest.mark.parametrize("attack", sorted(ATTACKS))
def test_every_attack_runs_against_clusters(attack):
    found = attacked_run(make_config(SMALL | {"method": "ifca:k=2", "rounds": 2}), attack, 1)
    assert 0 <= mean(found) <= 1
    assert (found.backdoor is not None) == (attack == "backdoor")


@pytest.mark.parametrize("attack", ["scale", "sign-flip", "alie", "veto", "forced-split"])
def test_a_hostile_client_does_not_end_a_run_of_cfl(attack):
    """Its half-updates are in the steps that a check tries out, whose losses are then not finite."""
    config = make_config(SMALL | {"scenario": "digits-permuted", "method": "cfl", "rounds": 6})
    assert len(attacked_run(config, attack, 2).accuracy) == 6


LAYOUT = Layout((Entry("head.weight", (3, 2), 0, 6, False), Entry("head.bias", (3,), 6, 9, False)))


def scene(rule="trimmed-mean(2)", honest=8, hostile=2, seed=0):
    known = torch.randn(honest, 9, generator=torch.Generator().manual_seed(seed)) + 1
    center = Aggregation.parse(rule)
    return crafting.Scene(
        known[0], known, hostile, lambda rows: center.center(rows, [1.0] * len(rows)), torch.zeros(9), LAYOUT
    )


@pytest.mark.parametrize("rule", ["trimmed-mean(2)", "nnm+trimmed-mean(2)", "multi-krum(2)", "median"])
@pytest.mark.parametrize("craft", [crafting.little_is_enough, crafting.inner_product, crafting.orthogonal])
def test_the_search_finds_a_vector_that_no_other_length_beats(craft, rule):
    known = scene(rule)
    sent = craft(known)
    step = sent - known.mean
    assert all(
        known.moved(sent) >= known.moved(known.mean + s * 2.0**e * step) - 1e-9
        for e in (-1, 1)
        for s in (1, -1)
        if 2.0**-3 <= _length(craft, known, step) * 2.0**e <= 2.0**6
    )
    assert known.moved(sent) > 0


def _length(craft, known, step):
    """The γ of a step: all are powers of two, so the nearest is it."""
    unit = {crafting.little_is_enough: known.honest.std(0, unbiased=False), crafting.inner_product: known.mean}
    usual = known.honest.norm(dim=1).median()
    return float(step.norm() / (unit[craft].norm() if craft in unit else usual))


def test_min_max_and_min_sum_keep_to_their_constraints_and_touch_them():
    known = scene()
    apart = torch.cdist(known.honest, known.honest)
    farthest = (known.honest - crafting.min_max(known)).norm(dim=1).max()
    assert float(farthest) == pytest.approx(float(apart.max()), rel=1e-3)
    summed = (known.honest - crafting.min_sum(known)).square().sum()
    assert float(summed) == pytest.approx(float(apart.square().sum(1).max()), rel=1e-3)


def test_mimics_copy_the_honest_client_that_moves_the_rule_most():
    known = scene()
    sent = crafting.mimic(known)
    assert any(torch.equal(sent, own) for own in known.honest)
    assert known.moved(sent) == max(known.moved(own) for own in known.honest)


def test_the_orthogonal_attacker_sends_nothing_along_the_honest_mean_but_the_mean():
    known = scene()
    step = crafting.orthogonal(known) - known.mean
    assert abs(float(step @ known.mean)) < 1e-4 * float(step.norm() * known.mean.norm())
    rolled = crafting.rolled_outputs(torch.arange(9.0), LAYOUT)
    assert rolled.tolist() == [4, 5, 0, 1, 2, 3, 8, 6, 7]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_fixed_attacker_goes_along_one_direction_and_the_mean(seed):
    known = scene("median", seed=seed)
    drawn = torch.randn(9, generator=torch.Generator().manual_seed(0))
    basis, step = torch.stack([drawn, known.mean], 1), crafting.fixed(known) - known.mean
    there = basis @ torch.linalg.lstsq(basis, step[:, None]).solution[:, 0]
    torch.testing.assert_close(there, step, rtol=1e-3, atol=1e-3)
    assert abs(float(step @ drawn)) > 0.5 * float(drawn.norm())


def test_chosen_centroids_are_halves_of_two_clients_far_apart():
    honest = [torch.zeros(4, 2), torch.ones(4, 2), torch.full((4, 2), 9.0)]
    assert chosen_centroids(honest)[:, 0].tolist() == [0, 0, 9, 9]


def test_hostile_clients_who_act_together_are_of_one_group():
    federation, _ = make_federation(make_config(SMALL | {"scenario": "digits-permuted", "clients": 20}))
    for seed in range(5):
        bad = choose_hostile(federation, 3, seed, ATTACKS["alie"])
        assert len({federation[client].group for client in bad}) == 1


def test_a_sleeper_is_honest_for_half_of_the_rounds():
    config = make_config(SMALL | {"method": "fedavg", "rounds": 4})
    assert attacked_run(config, "sleeper", 1).accuracy != attacked_run(config, "ipm", 1).accuracy
    short = make_config(SMALL | {"method": "fedavg", "rounds": 1})
    assert attacked_run(short, "sleeper", 1).accuracy == attacked_run(short, "ipm", 1).accuracy


def test_an_unknown_attack_gets_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'scale'"):
        find_attack("scael")


def test_the_table_says_what_an_attack_cost():
    rows = [
        AttackResult("digits", "fedavg", "mean", "none", 0, 0.9, 0, 0, 0, 1, 0, 0),
        AttackResult("digits", "fedavg", "median", "backdoor", 1, 0.85, 0.05, 0.07, 0.3, 1, 0.02, 0.2, 0.25),
    ]
    assert (
        "| digits | fedavg | median | 2.0 | 20.0 | backdoor | 1 | 85.0 | 5.0 | 7.0 | 30.0 | 1.00 | 25 |"
        in as_markdown(rows)
    )


WORDS = ["--scenarios", "digits-iid", "--clients", "6", "--rounds", "1", "--attacks", "none,scale", "--hostile", "1"]


def test_an_attack_is_measured_on_the_clients_that_are_honest(tmp_path):
    command = importlib.import_module("coterie_attacks.command").attack
    result = CliRunner().invoke(command, [*WORDS, "--out", str(tmp_path / "t.json")])
    assert result.exit_code == 0, result.output
    none, scale = json.loads((tmp_path / "t.json").read_text())
    config = make_config({"scenario": "digits-iid", "clients": 6, "rounds": 1, "method": "fedavg", "seed": 0})
    clean = attacked_run(config, "none", 0).accuracy
    [bad] = choose_hostile(make_federation(config)[0], 1, 0)
    assert none["accuracy"] == pytest.approx(fmean(clean.values()))
    before = fmean(value for client, value in clean.items() if client != bad)
    assert scale["lost"] == pytest.approx(before - scale["accuracy"])


def test_finished_runs_are_not_done_again(tmp_path):
    command = importlib.import_module("coterie_attacks.command").attack
    words = [*WORDS, "--cells", str(tmp_path / "cells"), "--rules", "mean,expected"]
    first, second = (CliRunner().invoke(command, words) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert first.stdout == second.stdout
    assert "running" in first.stderr
    assert "running" not in second.stderr
    assert "expect_hostile=1" in first.stdout


def test_the_command_writes_the_table(tmp_path):
    command = importlib.import_module("coterie_attacks.command").attack
    result = CliRunner().invoke(command, [*WORDS, "--rules", "mean,trimmed-mean(1)", "--out", str(tmp_path / "t.md")])
    assert result.exit_code == 0, result.output
    table = (tmp_path / "t.md").read_text()
    assert table.count("\n") == 2 + 4
    assert "| fedavg | trimmed-mean(1) | " in table
