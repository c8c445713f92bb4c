"""Every scenario builds, deals as it says, and its hidden groups differ as promised."""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.data.scenarios import find_scenario, list_scenarios
from coterie.data.sources import available, load_source
from coterie.errors import ConfigError, CoterieError, DataError
from coterie.federation import PARTS

ISSUE = [
    "digits-permuted",
    "digits-swapped",
    "digits-rotated",
    "digits-dirichlet",
    "digits-iid",
    "mnist-swapped",
    "mnist-permuted",
    "mnist-rotated",
    "mnist-halves",
    "mnist-writers",
    "fashion-rotated",
    "cifar-permuted",
    "cifar-rotated",
    "cifar-dirichlet-quarters",
    "agnews-topics",
    "linear-mixture",
    "xor",
]
FILES = ("mnist", "fashion", "cifar", "femnist", "emnist", "agnews", "shakespeare", "digits-4", "air", "landmine")
NEED_FILES = [s.name for s in list_scenarios() if s.name.startswith(FILES)]
DIGITS = [s.name for s in list_scenarios() if s.name.startswith("digits") and s.name not in NEED_FILES]
NO_FILES = ["linear-mixture", "xor", "opposite", *DIGITS]

NOT_HERE = "coterie data fetch|LEAF publishes no ready files|has no lasting address"


def key(x):
    return x.numpy().tobytes()


def build(name, **sizes):
    return find_scenario(name).build(**sizes)


def samples(client, parts=PARTS):
    return [(key(x), int(y)) for part in parts for x, y in zip(client.part(part).x, client.part(part).y, strict=True)]


def test_all_promised_scenarios_are_there_with_a_line_each():
    known = {s.name: s for s in list_scenarios()}
    assert set(ISSUE) <= set(known)
    assert all(s.summary and "\n" not in s.summary for s in known.values())


@pytest.mark.parametrize("name", NO_FILES)
def test_builds_with_its_sizes_and_repeats(name):
    scenario = find_scenario(name)
    made, again = scenario.build(seed=3), scenario.build(seed=3)
    assert len(made) == scenario.clients
    assert made.name == name
    assert len(set(made.groups)) == scenario.groups
    for a, b in zip(made, again, strict=True):
        for part in PARTS:
            assert torch.equal(a.part(part).x, b.part(part).x)
            assert torch.equal(a.part(part).y, b.part(part).y)
            assert len(a.part(part)) > 0
    other = scenario.build(seed=4)
    assert any(not torch.equal(a.train.x, b.train.x) for a, b in zip(made, other, strict=True)
               if a.train.x.shape == b.train.x.shape) or name == "digits-dirichlet"  # fmt: skip
    if scenario.samples:
        assert {len(c.train) for c in made} == {scenario.samples}


@pytest.mark.parametrize("name", ["digits-iid", "digits-permuted", "digits-rotated", "digits-swapped", "xor"])
def test_sizes_are_parameters(name):
    made = build(name, clients=8, samples=30, groups=2)
    assert len(made) == 8
    assert {len(c.train) for c in made} == {30}
    assert Counter(made.groups) == {0: 4, 1: 4}


@pytest.mark.parametrize("name", ["digits-iid", "digits-permuted", "digits-rotated", "digits-swapped"])
def test_inside_a_group_no_sample_is_dealt_twice_and_none_is_lost(name):
    made, pool = build(name), load_source("digits", None)
    for group in set(made.groups):
        members = [c for c in made if c.group == group]
        held = Counter(k for c in members for k, _ in samples(c))
        everything = Counter(key(x) for part in ("train", "test") for x in all_images(pool, part, made, group))
        assert held == everything


def all_images(pool, part, made, group):
    count = len(pool.y if part == "train" else pool.y_test)
    images = pool.images(np.arange(count), part)
    return torch.rot90(images, group, dims=(-2, -1)).contiguous() if made.name == "digits-rotated" else images


def labels_by_image(made, group):
    return dict(pair for c in made if c.group == group for pair in samples(c))


def test_permuted_groups_disagree_on_every_label():
    made = build("digits-permuted")
    tables = [labels_by_image(made, g) for g in range(4)]
    for a, b in itertools.combinations(tables, 2):
        shared = a.keys() & b.keys()
        assert len(shared) > 1000
        assert all(a[k] != b[k] for k in shared)
        assert len({(a[k], b[k]) for k in shared}) == 10  # one permutation, the same in train and test


def test_swapped_groups_differ_by_two_labels_each():
    made, plain = build("digits-swapped"), labels_by_image(build("digits-iid"), 0)
    pairs = []
    for group in range(4):
        own = labels_by_image(made, group)
        moved = {(plain[k], own[k]) for k in own if plain[k] != own[k]}
        assert len(moved) == 2
        (a, b), (c, d) = moved
        assert (a, b) == (d, c)
        pairs.append(frozenset((a, b)))
    assert len(set(pairs)) == 4


def test_rotated_groups_are_quarter_turns_of_the_same_images():
    made, plain = build("digits-rotated"), labels_by_image(build("digits-iid"), 0)
    for client in made:
        for x, y in zip(client.test.x, client.test.y, strict=True):
            assert plain[key(torch.rot90(x, -client.group, dims=(-2, -1)).contiguous())] == int(y)


def test_halves_hold_their_own_classes():
    for client in build("digits-halves"):
        expected = set(range(5)) if client.group == 0 else set(range(5, 10))
        for part in PARTS:
            assert set(client.part(part).y.tolist()) <= expected
    three = build("digits-halves", groups=3, clients=6)
    assert [sorted({y for c in three if c.group == g for y in c.train.y.tolist()}) for g in range(3)] == [
        [0, 1, 2, 3], [4, 5, 6], [7, 8, 9],
    ]  # fmt: skip


def test_dirichlet_deals_every_sample_once_and_skews_labels():
    made, pool = build("digits-dirichlet"), load_source("digits", None)
    held = Counter(k for c in made for k, _ in samples(c))
    assert held == Counter(key(x) for x in pool.images(np.arange(len(pool.y)), "train"))
    assert np.mean([max(Counter(c.train.y.tolist()).values()) / len(c.train) for c in made]) > 0.25


def test_quarters_grow_more_skewed():
    made = build("digits-dirichlet-quarters")
    skew = {}
    for quarter in range(4):
        members = [c for c in made if c.group == quarter]
        assert len(members) == 5
        skew[quarter] = np.mean([max(Counter(c.train.y.tolist()).values()) / len(c.train) for c in members])
    assert skew[0] < skew[1] < skew[3]
    assert skew[0] < skew[2] < skew[3]


def test_linear_mixture_has_one_regression_a_group():
    made = build("linear-mixture", clients=10, samples=150)
    fitted = {}
    for client in made:
        theta = np.linalg.lstsq(client.train.x.numpy(), client.train.y.numpy(), rcond=None)[0][:, 0]
        assert np.abs(theta - theta.round()).max() < 0.2
        fitted.setdefault(client.group, set()).add(tuple(theta.round().astype(int)))
    assert [len(found) for found in fitted.values()] == [1, 1]
    assert fitted[0] != fitted[1]
    assert {value for found in fitted.values() for theta in found for value in theta} == {0, 1}


def test_toys_conflict():
    for name in ("xor", "opposite"):
        for client in build(name, clients=4, samples=300):
            up = client.train.x[client.train.y == 1].mean(0)
            assert up[1].item() == pytest.approx(1 if client.group == 0 else -1, abs=0.15)
            side = 0 if name == "opposite" else (-1 if client.group == 0 else 1)
            assert client.train.x[:, 0].mean().item() == pytest.approx(side, abs=0.15)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("digits-iid", {"clients": 5000}),
        ("digits-iid", {"clients": 10, "samples": 1000}),
        ("digits-permuted", {"clients": 3, "groups": 4}),
        ("digits-rotated", {"groups": 3}),
        ("digits-rotated", {"groups": 5}),
        ("digits-swapped", {"clients": 60, "groups": 50}),
        ("digits-halves", {"groups": 11}),
        ("digits-dirichlet", {"clients": 1000}),
        ("digits-dirichlet", {"groups": 2}),
        ("digits-dirichlet-quarters", {"groups": 2}),
        ("digits-dirichlet-quarters", {"clients": 3}),
        ("xor", {"groups": 3}),
        ("xor", {"clients": 1}),
    ],
)
def test_what_cannot_be_made_says_so(name, sizes):
    with pytest.raises(CoterieError) as caught:
        build(name, **sizes)
    assert "\n" not in str(caught.value)


def test_unknown_scenario_and_missing_data(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'xor'"):
        find_scenario("xro")
    for name in NEED_FILES:
        with pytest.raises(DataError, match=NOT_HERE):
            build(name, data_dir=tmp_path)


@pytest.mark.parametrize("name", NEED_FILES)
def test_builds_from_files_where_they_are(name):
    if not os.environ.get("COTERIE_DATA"):
        pytest.skip("COTERIE_DATA names no folder with data sets")
    folder = Path(os.environ["COTERIE_DATA"])
    present = {row.name for row in available(folder) if row.present}
    try:
        made = build(name, clients=8, samples=None if name in ("mnist-writers", "femnist") else 40, data_dir=folder)
    except DataError as problem:
        if re.search(NOT_HERE, str(problem)):
            pytest.skip(f"not in COTERIE_DATA (there: {', '.join(sorted(present))})")
        raise
    assert len(made) == 8
    assert all(len(c.train) and len(c.test) for c in made)
