"""Why clusters differ: labels matched by hand-worked confusions, and runs whose difference is known."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.cli.main import main
from coterie.data.builders import group_shifts
from coterie.data.scenarios import find_scenario
from coterie.errors import ConfigError, DataError
from coterie.federation import Client, Federation, Split
from coterie.methods.groups import Groups
from coterie.runs.folder import RunFolder
from coterie_advice.cluster_differences import Crossing, PairDifference, label_mix
from coterie_advice.explaining import Explanation
from coterie_advice.input_shift import Separation, alike_in_labels, separation
from coterie_advice.label_matching import LabelMatch, confusion, cycles, in_words, match_labels


def test_a_confusion_counts_labels_by_what_they_are_called() -> None:
    assert confusion([0, 0, 1, 2], [0, 1, 1, 0], 3).tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 0]]


def test_a_swap_is_read_from_both_models() -> None:
    # Of the second cluster's label 1 the first's model calls 9 of 10 "2", and so on.
    first_on_second = [[10, 0, 0], [0, 1, 9], [0, 8, 2]]
    second_on_first = [[5, 0, 0], [1, 0, 4], [0, 5, 0]]
    match = match_labels(first_on_second, second_on_first)
    assert match.moved == {1: 2, 2: 1}
    # Label 1 of the first is label 2 of the second: 8 of 10 by the first's model, 4 of 5 by the second's.
    assert match.agreement == pytest.approx({0: 1.0, 1: (0.8 + 0.8) / 2, 2: (0.9 + 1.0) / 2})
    assert match.forward(np.array([0, 1, 2])).tolist() == [0, 2, 1]


def test_a_cycle_goes_the_right_way() -> None:
    # What the first cluster calls 0, 1, 2 the second calls 1, 2, 0.
    first_on_second = np.array([[0, 0, 9], [9, 0, 0], [0, 9, 0]])
    match = match_labels(first_on_second, first_on_second.T)
    assert match.moved == {0: 1, 1: 2, 2: 0}
    assert match.backward(match.forward(np.arange(3))).tolist() == [0, 1, 2]
    assert match.forward(np.arange(3)).tolist() == [1, 2, 0]


def test_a_name_that_few_samples_speak_for_is_doubtful() -> None:
    spread = np.array([[2, 4, 4], [4, 2, 4], [4, 4, 2]])
    match = LabelMatch({0: 1, 1: 0, 2: 2}, {0: 0.3, 1: 0.9, 2: 1.0})
    assert (match.moved, match.doubtful) == ({1: 0}, {0: 1})
    assert set(match_labels(spread, spread).renamed.values()) == {0, 1, 2}


def test_a_label_that_nobody_holds_is_not_matched() -> None:
    match = match_labels([[0, 0, 0], [0, 9, 0], [0, 0, 9]], [[9, 0, 0], [0, 9, 0], [0, 0, 9]])
    assert match.renamed == {1: 1, 2: 2}


@given(st.integers(0, 10**6))
def test_the_match_is_the_best_of_all(seed: int) -> None:
    there, here = np.random.default_rng(seed).integers(1, 20, (2, 4, 4))
    match = match_labels(there, here)
    gain = (there / there.sum(1, keepdims=True)).T + here / here.sum(1, keepdims=True)
    best = max(sum(gain[i, p[i]] for i in range(4)) for p in permutations(range(4)))
    assert sum(gain[a, b] for a, b in match.renamed.items()) == pytest.approx(best, abs=1e-4)


def test_renamed_labels_in_words() -> None:
    assert cycles({1: 2, 2: 1, 3: 4}) == [[3, 4], [1, 2, 1]]
    assert in_words({1: 2, 2: 1, 3: 4}) == "1 and 2 are swapped; 3 → 4"
    assert in_words({0: 1, 1: 2, 2: 0}, ["a", "b", "c"]) == "a → b, b → c, c → a"
    assert in_words({}) == ""


def normal(n: int, shift: float = 0.0, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(shift, scale, (n, 5))


def test_inputs_are_told_apart_by_mean_and_by_spread_but_not_by_chance() -> None:
    for other, apart in ((normal(200, seed=1), False), (normal(200, 1.0, seed=1), True), (normal(200, 0, 3, 1), True)):
        found = separation(normal(200), other)
        assert found is not None
        assert (found.auc > 0.8 and found.p < 1e-6) == apart
        assert apart or abs(found.auc - 0.5) < 0.1
    assert separation(normal(5), normal(200)) is None


def test_samples_are_drawn_alike_in_labels() -> None:
    first, second = np.array([0, 0, 0, 1, 2]), np.array([1, 1, 0, 0])
    a, b = alike_in_labels(first, second)
    assert sorted(first[a]) == sorted(second[b]) == [0, 0, 1]


def test_label_mixes() -> None:
    found = label_mix(np.array([50, 50, 0]), np.array([50, 0, 50]))
    assert found.distance == pytest.approx(0.5)
    assert found.differs
    assert [row[0] for row in found.largest[:2]] == [1, 2]
    assert not label_mix(np.array([50, 50]), np.array([48, 52])).differs


SWAP = LabelMatch({0: 1, 1: 0}, {0: 0.9, 1: 0.9})
SAME = LabelMatch({0: 0, 1: 1}, {0: 0.9, 1: 0.9})
TOLD, UNTOLD = Separation(0.9, 1e-9), Separation(0.52, 0.3)


@pytest.mark.parametrize(
    ("own", "other", "renamed", "shared", "match", "inputs", "kind"),
    [
        (0.9, 0.89, 0.89, 0.01, SAME, UNTOLD, "alike"),
        (0.9, 0.1, 0.9, 0.8, SWAP, UNTOLD, "labels"),
        (0.9, 0.4, 0.4, 0.0, SAME, TOLD, "label mix"),
        (0.9, 0.4, 0.4, None, SAME, None, "label mix"),
        (0.9, 0.4, 0.4, 0.5, SAME, TOLD, "inputs"),
        (0.9, 0.4, 0.5, 0.5, SWAP, TOLD, "inputs"),
        (0.9, 0.4, 0.4, 0.5, SAME, UNTOLD, "rule"),
        (0.9, 0.4, 0.5, 0.5, SWAP, UNTOLD, "undecided"),
        (0.55, 0.1, 0.5, 0.4, SWAP, UNTOLD, "undecided"),
    ],
)
def test_the_kind_of_a_difference(own, other, renamed, shared, match, inputs, kind) -> None:  # type: ignore[no-untyped-def]
    side = Crossing(own, other, 0.01, 0.5, renamed, shared)
    found = PairDifference(0, 1, side, side, match, inputs)
    assert found.kind == kind
    assert found.words()[0].startswith("Clusters 0 and 1: ")


def test_a_weak_model_is_named() -> None:
    strong, weak = Crossing(0.9, 0.5, 0.01, 0.5), Crossing(0.92, 0.5, 0.01, 0.92)
    found = PairDifference(3, 7, strong, weak, SAME, TOLD)
    assert found.kind == "undecided"
    assert "that of cluster 7 is hardly better" in found.words()[0]


def test_one_better_model_for_all_is_no_difference() -> None:
    better, worse = Crossing(0.9, 0.7, 0.01), Crossing(0.7, 0.9, 0.01)
    assert PairDifference(0, 1, better, worse).kind == "alike"


def trained(kind: str, seed: int = 2) -> tuple[Federation, coterie.Result]:
    """Six clients of two groups, in the right clusters."""
    data = find_scenario(f"digits-{kind}").build(clients=6, groups=1 if kind == "iid" else 2, seed=seed)
    of = {client.id: i % 2 if kind == "iid" else client.group or 0 for i, client in enumerate(data)}
    return data, coterie.run(Groups(of=of), data, model="mlp:hidden=32", rounds=12)


def explained(kind: str) -> Explanation:
    data, result = trained(kind)
    return result.explain(data)


@pytest.mark.parametrize("kind", ["swapped", "permuted"])
def test_renamed_labels_are_named(kind: str) -> None:
    (pair,) = explained(kind).pairs
    first, second = (shift(torch.zeros(10, 8, 8), torch.arange(10))[1] for shift in group_shifts(kind, 10, 2, 2))
    truth = {int(a): int(b) for a, b in zip(first, second, strict=True) if a != b}
    assert pair.kind == "labels"
    assert pair.match is not None
    assert pair.match.moved == truth
    assert in_words(truth) in pair.words()[0]


def test_turned_images_are_a_difference_of_the_inputs() -> None:
    found = explained("rotated")
    assert found.pairs[0].kind == "inputs"
    assert "a difference of the inputs, not of the labels" in str(found)
    for facts in found.clusters:
        assert facts.scores[facts.id] == max(facts.scores.values()) > 0.85


def test_clients_that_are_alike_are_said_to_be() -> None:
    assert explained("iid").pairs[0].kind == "alike"


def test_a_model_without_clients_is_left_out() -> None:
    data = find_scenario("digits-iid").build(clients=4, groups=1, seed=0)
    result = coterie.run("ifca:k=2", data, model="mlp", rounds=1, workers=1)
    together = [[client for group in result.clusters for client in group], []]
    empty = replace(result, summary=replace(result.summary, clusters=together, cluster_ids=[0, 1]))
    assert len(empty.explain(data).clusters) == 1


def test_a_regression_by_another_rule() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for i in range(4):
        x = torch.randn(200, 3, generator=generator)
        y = x[:, 0] * (1.0 if i % 2 else -1.0)
        clients.append(Client(f"c{i}", Split(x[:120], y[:120]), Split(x[:0], y[:0]), Split(x[120:], y[120:])))
    data = Federation(clients)
    result = coterie.run(Groups(of={f"c{i}": i % 2 for i in range(4)}), data, model="linear", rounds=20, lr=0.1)
    found = result.explain(data)
    assert found.pairs[0].kind == "rule"
    assert "variance explained" in str(found)


def test_the_command_finds_the_data_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"clients": 4, "groups": 2, "samples": 60, "rounds": 6, "model": "mlp:hidden=16"}
    method = "ifca:k=2,init=k-means++"
    coterie.run(method, scenario="digits-permuted", out=tmp_path / "run", validation=0.2, **small)  # type: ignore[arg-type]
    main(["explain", str(tmp_path / "run")])
    assert "Clusters 0 and 1: the labels differ: " in capsys.readouterr().out
    kept = RunFolder(tmp_path / "run").explanation()
    assert kept is not None
    assert kept.clusters == [0, 1]
    assert min(kept.scores[0][0], kept.scores[1][1]) > max(kept.scores[0][1], kept.scores[1][0])
    RunFolder(tmp_path / "run").reopen()  # a run that goes on has other clusters
    assert RunFolder(tmp_path / "run").explanation() is None
    coterie.resume(tmp_path / "run")
    main(["explain", str(tmp_path / "run"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"][0]["kind"] == "labels"
    assert len(found["clusters"]) == 2
    with pytest.raises(SystemExit):
        main(["explain", str(tmp_path / "run"), "--data", "elsewhere"])
    assert capsys.readouterr().err.count("\n") == 1


def test_data_that_is_not_at_hand_is_asked_for(tmp_path: Path) -> None:
    data = find_scenario("digits-iid").build(clients=3, samples=20, seed=0)
    result = coterie.run("fedavg", data, model="logistic", rounds=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="give it again"):
        coterie.load(tmp_path / "run").explain()
    with pytest.raises(DataError, match="is not in the federation"):
        result.explain(data.subset(data.ids[:2]))
    assert str(result.explain(data)) == "The run has one cluster: there is nothing to compare."
