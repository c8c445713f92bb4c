"""CFL's recipes at tiny sizes: the synthetic map, gaps, norms, splits on a tree, and the toys' paths."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clustering import bipartition
from coterie.errors import DataError
from coterie.models import build
from coterie.parameters import Layout
from coterie.randomness import numpy_generator
from coterie.runs import make_config, make_federation
from coterie_recipes import (
    Study,
    cfl_congruence,
    cfl_gap,
    cfl_map,
    cfl_newcomers,
    cfl_norms,
    cfl_runs,
    cfl_toy,
    find_recipe,
    reproduce,
)
from coterie_recipes.cfl import followed, separation_by_gradients, separation_by_updates, split_rounds
from coterie_recipes.runs import ProgressLogger, kept_run, study_config

DIGITS: dict[str, Any] = {"scenario": "digits-permuted", "model": "mlp:hidden=16", "clients": 8, "groups": 2}
TINY = cfl_gap.GapSetting("digits", DIGITS | {"lr": 0.1, "epochs": 3, "batch_size": 16}, (20, 60), 60, 20)


def read(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    results = json.loads((folder / "results.json").read_text())
    return {(row["setting"], row["measure"]): row for row in results["rows"]}


def test_synthetic_gradients_are_stationary_and_as_noisy_as_asked() -> None:
    clean = cfl_map.similarities(2, 0.0, 3, numpy_generator(0))
    assert clean.shape == (3, 6, 6)
    expected = np.kron([[1, -1], [-1, 1]], np.ones((3, 3)))  # two gradients that sum to zero are opposite
    assert clean == pytest.approx(np.broadcast_to(expected, clean.shape))
    # With independent noise of γ times the length, members of a group are similar by about 1/(1 + γ²).
    noisy = cfl_map.similarities(8, 2.0, 60, numpy_generator(1))
    assert noisy[:, 0, 1].mean() == pytest.approx(1 / 5, abs=0.03)


def test_the_map_is_sure_without_noise_and_lost_in_much() -> None:
    cell = cfl_map.probabilities(6, (0.0, 1.0, 30.0), 15, 0)
    assert cell["correct"][:2] == [1.0, 1.0]
    assert cell["gap"][0] == 1.0
    assert cell["correct"][2] < 0.3
    assert cell["complete"][:2] == [1.0, 1.0]
    assert all(gap <= correct for gap, correct in zip(cell["gap"], cell["correct"], strict=True))


def test_least_probability_in_the_area_of_the_theorem() -> None:
    cells = {2: {"correct": [1.0, 0.9, 0.2]}, 40: {"correct": [1.0, 0.1, 0.1]}}
    # For K=2 the theorem holds up to γ = sin(45°) ≈ 0.707; for K=40 noise of 0.5 is far outside.
    assert cfl_map.least_guaranteed(cells, (0.0, 0.5, 0.8)) == 0.9


def test_the_map_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cfl_map, "QUICK_K", (2, 12))
    monkeypatch.setattr(cfl_map, "QUICK_GAMMA", (0.5, 1.0, 3.0))
    monkeypatch.setattr(cfl_map, "MARKS", ((2, 0.5), (12, 1.0)))
    reproduce("cfl-fig3", Study(tmp_path / "out"))
    rows = read(tmp_path / "out")
    assert rows["Theorem 1's area", "least P[correct]"]["ours"]["mean"] == 1.0
    assert rows["K=12, γ=1", "P[correct]"]["ours"]["mean"] > 0.9
    assert rows["K=12, γ=1", "P[correct]"]["paper"] == "≈ 1"
    assert (tmp_path / "out" / "figure3.png").stat().st_size > 1000


def test_a_gap_is_that_of_the_clients_own_updates(tmp_path: Path) -> None:
    config = study_config(Study(tmp_path, workers=1), 0, method="fedavg", rounds=12, **DIGITS)
    *_, (t, prepared, state) = followed(config)
    assert t == 12
    everybody = prepared.server.clients
    updates = separation_by_updates(prepared, state.model, 13, everybody)
    assert updates.correct
    assert updates.gap > 0.5  # two groups with permuted labels stand far apart
    assert separation_by_gradients(prepared, state.model, everybody).gap != updates.gap
    own = [c for c, group in zip(everybody, prepared.groups or (), strict=True) if group == 0]
    alone = separation_by_updates(prepared, state.model, 13, own)
    assert not alone.correct  # any split of one group divides it
    assert alone.gap <= 0


def test_a_balanced_draw_has_as_many_of_every_label() -> None:
    whole, _ = make_federation(make_config({"scenario": "digits-swapped", "clients": 4, "groups": 2, "samples": 200}))
    drawn = cfl_gap.balanced(whole, 30)
    for client in drawn:
        assert torch.bincount(client.train.y, minlength=10).tolist() == [3] * 10
    assert drawn.groups == whole.groups
    with pytest.raises(DataError, match="lacks 18 samples of some label"):
        cfl_gap.balanced(whole, 180)


def test_the_network_of_the_gaps_gives_zero_for_an_image_at_the_mean() -> None:
    network = build(cfl_gap.MNIST.options["model"], (1, 28, 28), 10, 0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
        grey, seen = network(torch.full((2, 1, 28, 28), 0.1307)), network(torch.rand(2, 1, 28, 28))
    assert grey.shape == (2, 10)
    assert grey.abs().max() == 0
    assert seen.abs().min() > 0


def test_with_labels_alone_equal_counts_make_a_simplex_of_the_groups() -> None:
    # Inside a group all gradients agree; across, the cosine is -1/3: so four vectors stand that add up to nothing.
    assert cfl_gap.label_gap(np.full((20, 10), 7)) == pytest.approx(4 / 3)
    few, some, many = (
        np.mean([cfl_gap.label_gap(cfl_gap.drawn_counts(n, s)) for s in range(60)]) for n in (10, 20, 50)
    )
    assert few < 0 < some < many


def test_gap_recipes_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cfl_gap, "MNIST", TINY)
    monkeypatch.setattr(cfl_gap, "ROUNDS", 10)
    monkeypatch.setattr(cfl_gap, "SPARE", 5)
    reproduce("cfl-gap-vs-samples", Study(tmp_path / "samples", workers=1))
    rows = read(tmp_path / "samples")
    few, many = (
        rows[f"digits, random draw, {n} samples per client", "gap by updates"]["ours"]["mean"] for n in (20, 60)
    )
    assert many > max(few, 0)
    assert (tmp_path / "samples" / "figure6.png").stat().st_size > 1000
    monkeypatch.setattr(cfl_gap, "QUICK_MARKS", (1, 5, 10))
    reproduce("cfl-gap-vs-rounds", Study(tmp_path / "rounds", workers=1))
    rows = read(tmp_path / "rounds")
    last = rows["digits, round 10", "gap by updates"]["ours"]["mean"]
    assert last == pytest.approx(many)  # the same run, looked at in the same place
    assert rows["digits, round 1", "gap by updates"]["ours"]["mean"] < last
    assert (tmp_path / "rounds" / "figure7.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("gaps", "first"), [([-1, 1, 2], 5), ([1, -1, 2], 9), ([1, 1, -1], math.inf), ([1, 1, 1], 1), ([1, 0, 1], 9)]
)
def test_first_round_from_which_the_gap_stays_positive(gaps: list[float], first: float) -> None:
    assert cfl_gap.first_positive(gaps, [1, 5, 9]) == first


def test_norms_of_congruent_and_incongruent_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cfl_congruence, "CASES", {"congruent": "digits-halves", "incongruent": "digits-permuted"})
    monkeypatch.setattr(cfl_congruence, "QUICK", {"samples": 200, "rounds": 60})
    reproduce("cfl-congruence", Study(tmp_path / "out", workers=1))
    rows = read(tmp_path / "out")
    fallen = rows["congruent", "largest update: last norm / highest"]["ours"]["mean"]
    kept = rows["incongruent", "largest update: last norm / highest"]["ours"]["mean"]
    assert fallen < 0.3 < 0.5 < kept
    assert (tmp_path / "out" / "figure8.png").stat().st_size > 1000


def test_remaining_norm_is_over_a_few_rounds() -> None:
    assert cfl_congruence.remaining([8.0] * 5 + [4.0] * 5) == 0.5
    cell = {"max": [9.0] * 5 + [6.0] * 5, "mean": [9.0] * 5 + [2.0] * 5}
    assert cfl_congruence.imbalance(cell) == 3.0


def test_the_largest_threshold_that_fires_is_taken_where_the_mean_is_below_a_tenth() -> None:
    mean, largest = [10.0, 5.0, 0.9, 0.5], [10.0, 8.0, 4.0, 6.0]
    course = {"mean": mean, "max": largest, "turn": [0.0] * 4}
    assert cfl_norms.largest_multiple(course, 2) == 0.0
    assert cfl_norms.largest_multiple(course, 3) == 4.0
    assert cfl_norms.largest_multiple(course, 4) == 6.0
    assert cfl_norms.remaining(mean) == 0.05


@pytest.mark.parametrize(
    ("congruent", "incongruent", "words"),
    [
        (0.0, 0.0, "late"),
        (6.0, 0.0, "late"),
        (0.0, 4.0, "separate"),
        (3.0, 4.0, "separate"),
        (5.0, 4.0, "both fire"),
        (12.0, 14.0, "both fire"),  # no ε2 up to 10 ε1 leaves the congruent ones together
    ],
)
def test_a_map_says_whether_some_threshold_separates(congruent: float, incongruent: float, words: str) -> None:
    assert cfl_norms.Verdict(congruent, incongruent).words == words


def test_splits_of_permuted_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"scenario": "digits-permuted", "clients": 9, "groups": 3, "samples": 120, "model": "mlp", "batch_size": 20}
    monkeypatch.setattr(cfl_runs, "CIFAR_QUICK", {**small, "rounds": 110, "evaluate_every": 2})
    study = Study(tmp_path / "out", workers=1)
    reproduce("cfl-cifar-permuted", study)
    rows = read(study.out)
    for path in (study.out / "cells").glob("*-seed0*.json"):
        cell = json.loads(path.read_text())
        assert cell["ari"] == 1.0
        splits = 2 if "published" in path.name else 1  # the paper's rule splits in two, ours finds three groups at once
        assert len(cell["splits"]) == len(cell["gaps"]) == len(cell["after"]) == splits
        assert min(cell["gaps"]) > 0 >= cell["last_gap"]
        assert cell["accuracy"] > 1.5 * cell["plateau"]
        assert cell["after"][-1] == cell["mean"][-1]
    assert rows["CIFAR-10, permuted labels, our default", "FL plateau accuracy %"]["paper"] == "≈ 20"
    splits = [rows[f"split {number}, as published", "round"]["ours"]["values"] for number in (1, 2)]
    assert splits == [[50.0], [100.0]]
    for name in ("published", "default"):
        assert (study.out / f"figure9-{name}.png").stat().st_size > 1000
    assert (study.out / "runs" / "as-published-seed0" / "summary.json").exists()


def test_a_kept_run_is_not_done_twice(tmp_path: Path) -> None:
    logged: list[str] = []
    study = Study(tmp_path, workers=1, log=logged.append)
    config = study_config(study, 0, method="fedavg", rounds=10, **DIGITS)
    first = kept_run(study, "run", config, ProgressLogger(study))
    again = kept_run(study, "run", config, ProgressLogger(study))
    assert torch.equal(first.models[0], again.models[0])
    assert "  resumes after round 10" in logged
    assert split_rounds(again) == []


def test_newcomers_are_placed_at_their_groups_leaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cfl_newcomers, "SCENARIO", "digits-permuted")
    monkeypatch.setattr(cfl_newcomers, "FOUNDERS", 8)
    monkeypatch.setattr(cfl_newcomers, "NEWCOMERS", 8)
    assert cfl_newcomers.place(Study(tmp_path, workers=1), 160, 0, "cfl", 1.0) == {"ari": 1.0, "right": 1.0}


def test_values_before_a_round() -> None:
    found = {"rounds": [2, 4, 6], "mean": [0.1, 0.2, 0.3]}
    assert [cfl_runs.before(found, t) for t in (1, 4, 5, 7)] == [0.1, 0.1, 0.2, 0.3]


def test_news_by_topic_reports_perplexities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"scenario": "digits-permuted", "clients": 8, "groups": 2, "rounds": 40, "evaluate_every": 2}
    monkeypatch.setattr(cfl_runs, "NEWS_QUICK", small)
    reproduce("cfl-agnews", Study(tmp_path / "out", workers=1))
    rows = read(tmp_path / "out")
    fl = rows["AG-News by topic", "FL perplexity"]["ours"]["mean"]
    for name in ("CFL", "CFL, our default"):
        cfl = rows["AG-News by topic", f"{name}: perplexity"]["ours"]["mean"]
        assert 1 < cfl < fl
        assert rows["AG-News by topic", f"{name}: perplexity / FL's"]["ours"]["mean"] == pytest.approx(cfl / fl)
    assert (tmp_path / "out" / "figure10.png").stat().st_size > 1000


def test_toys_end_at_chance_for_one_model_and_are_solved_by_two(tmp_path: Path) -> None:
    reproduce("cfl-toy", Study(tmp_path / "out", workers=1))
    rows = read(tmp_path / "out")
    for toy in ("federated XOR", "opposite conditionals"):
        # A group may be split once more, at the level of the rule: in 1 of 60 runs (seeds 0 to 29 of both toys).
        assert 2 <= rows[toy, "clusters of CFL"]["ours"]["mean"] <= 3
        assert rows[toy, "FedAvg accuracy %"]["ours"]["mean"] < 75
        assert rows[toy, "CFL accuracy %"]["ours"]["mean"] > 95
        assert rows[toy, "largest similarity across groups"]["ours"]["mean"] < -0.8
    assert rows["congruent", "FedAvg accuracy %"]["ours"]["mean"] > 95
    assert rows["congruent", "clusters of CFL"]["ours"]["mean"] == 1
    norms = {toy: rows[toy, "largest update: last norm / first"]["ours"]["mean"] for toy in cfl_toy.TOYS.values()}
    assert norms["congruent"] < 0.5 * min(norms["federated XOR"], norms["opposite conditionals"])
    cell = json.loads(next((tmp_path / "out" / "cells").glob("opposite-cfl*")).read_text())
    up, down = (path[-1][1] for path in cell["paths"])
    assert up > 1
    assert down < -1  # the two groups' models end on opposite sides
    assert (tmp_path / "out" / "paths.png").stat().st_size > 1000


def test_direction_of_a_two_class_model() -> None:
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2))
    with torch.no_grad():
        module[1].weight.copy_(torch.tensor([[1.0, 2.0], [4.0, 8.0]]))
        module[1].bias.copy_(torch.tensor([50.0, 90.0]))
    layout = Layout.of(module)
    assert cfl_toy.direction(layout.read(module), layout) == [3.0, 6.0]


def test_similarity_matrices_can_be_split() -> None:
    (similarity,) = cfl_map.similarities(3, 0.1, 1, numpy_generator(0))
    sides = bipartition(similarity)
    assert not set(sides.first // cfl_map.MEMBERS) & set(sides.second // cfl_map.MEMBERS)


@pytest.mark.parametrize(
    "name",
    ["cfl-fig3", "cfl-gap-vs-samples", "cfl-gap-vs-rounds", "cfl-congruence", "cfl-cifar-permuted", "cfl-agnews"],
)
def test_cfl_recipes_are_known(name: str) -> None:
    assert find_recipe(name).summary.startswith("CFL")
