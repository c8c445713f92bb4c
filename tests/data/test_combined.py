"""Federations by a formula: the parts combine, an alias is its formula, and a misspelling says where it is."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
import torch

import coterie
from coterie.data.builders import group_shifts
from coterie.data.partitions import SIZE_LAWS, iid, sizes_by_law
from coterie.data.scenarios import find_scenario
from coterie.data.sources import load_source
from coterie.errors import ConfigError, CoterieError, DataError
from coterie.federation import PARTS, Federation

ALL = "digits:swapped(2)+dirichlet(0.3)+sizes(zipf)"


def digest(federation: Federation) -> str:
    """Of all clients' samples, by their bytes."""
    found = hashlib.sha256()
    for client in federation:
        for part in PARTS:
            for values in (client.part(part).x, client.part(part).y):
                found.update(values.numpy().tobytes())
    return found.hexdigest()


def held(client: coterie.Client) -> Counter[bytes]:
    return Counter(x.numpy().tobytes() for part in PARTS for x in client.part(part).x)


# Digests of seed 3, from the builders that formulas replaced: a stored run is repeated by its scenario's name.
@pytest.mark.parametrize(
    ("alias", "formula", "sizes", "expected"),
    [
        ("digits-iid", "digits:none", {}, "de5bfd7eb89381c8"),
        ("digits-permuted", "digits:permuted", {}, "3444626cc6244be0"),
        ("digits-swapped", "digits:swapped", {"clients": 8, "samples": 30}, "87389a7b13a269af"),
        ("digits-rotated", "digits:rotated", {"clients": 6, "groups": 2}, "de2c2521fa59a51b"),
        ("digits-dirichlet", "digits:none+dirichlet(0.3)", {}, "b53736ff98a5547f"),
        ("digits-dirichlet", "digits:none+dirichlet(0.3)", {"clients": 8, "samples": 40}, "bb5f525dc19f4a07"),
    ],
)
def test_an_alias_is_its_formula_and_makes_the_data_it_always_made(alias, formula, sizes, expected) -> None:
    made = find_scenario(alias).build(seed=3, **sizes)
    assert made.name == alias
    assert digest(made) == digest(find_scenario(formula).build(seed=3, **sizes))
    assert digest(made)[:16] == expected


def test_every_group_deals_the_whole_source_with_its_own_rule_skew_and_sizes() -> None:
    made, pool = find_scenario(ALL).build(clients=12, seed=1), load_source("digits")
    assert made.groups == [0, 1] * 6
    everything = Counter(x.numpy().tobytes() for x in pool.images())
    plain = {x.numpy().tobytes(): int(y) for x, y in zip(pool.images(), pool.labels(), strict=True)}
    rules = [shift(torch.zeros(10), torch.arange(10))[1].tolist() for shift in group_shifts("swapped", 10, 2, 1)]
    assert rules[0] != rules[1]
    for group in range(2):
        members = [client for client in made if client.group == group]
        assert sum(map(held, members), Counter()) == everything
        for client in members:
            pairs = zip(client.train.x, client.train.y, strict=True)
            assert all(rules[group][plain[x.numpy().tobytes()]] == int(y) for x, y in pairs)
        sizes = sorted((held(client).total() for client in members), reverse=True)
        shares = np.array([1 / rank for rank in range(1, 7)])
        expected = 5 + (len(pool.y) - 30) * shares / shares.sum()
        assert np.abs(np.array(sizes) - expected).max() < 1
    assert held(made.clients[0]) != held(made.clients[1])  # each group is dealt by itself
    most = [max(Counter(client.train.y.tolist()).values()) / len(client.train) for client in made]
    assert np.mean(most) > 0.3  # ten classes alike would give a tenth and a little noise


def test_classes_per_client_and_the_mean_size() -> None:
    made = find_scenario("digits:rotated(2)+classes(3)+sizes(lognormal,0.5)").build(clients=10, samples=60, seed=2)
    for client in made:
        assert len({y for part in PARTS for y in client.part(part).y.tolist()}) == 3
    for group in range(2):
        sizes = [held(client).total() for client in made if client.group == group]
        assert sum(sizes) == 5 * 60
        assert len(set(sizes)) > 2
    steep = find_scenario("digits:none+classes(8)+sizes(zipf,50)").build(clients=10, samples=30)
    assert sorted(held(client).total() for client in steep) == [8] * 9 + [228]  # the smallest have one of each label


def test_sizes_follow_their_law() -> None:
    assert sizes_by_law(SIZE_LAWS["equal"], 1.0, 100, 3, None, 5, 0).tolist() in (
        [33, 33, 34],
        [33, 34, 33],
        [34, 33, 33],
    )
    zipf = sizes_by_law(SIZE_LAWS["zipf"], 1.0, 1000, 3, 20, 2, 0)
    assert sorted(zipf.tolist()) == [12, 17, 31]  # 2 each, and 54 as 6 : 3 : 2
    wide = sizes_by_law(SIZE_LAWS["lognormal"], 1000.0, 1000, 20, 30, 5, 0)
    assert (wide.sum(), wide.min()) == (600, 5)
    lots = sizes_by_law(SIZE_LAWS["lognormal"], 0.5, 10**7, 2000, None, 1, 0)
    assert np.log(lots).std() == pytest.approx(0.5, abs=0.03)
    dealt = iid(100, 3, np.array([5, 60, 20]), 1)
    assert [len(part) for part in dealt] == [5, 60, 20]
    assert len(set(np.concatenate(dealt).tolist())) == 85


def test_a_formula_runs_and_keeps_its_name() -> None:
    result = coterie.run("fedavg", scenario=ALL, clients=4, rounds=1, workers=1)
    assert result.summary.scenario == ALL


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("fashon:swapped(4)", 1, "'fashon' is no data set of images: did you mean 'fashion'"),
        ("ag-news:none", 1, "'ag-news' is no data set of images"),
        ("digits:swaped(4)", 8, "'swaped' is no shift: did you mean 'swapped'"),
        ("digits:", 8, "expected a name such as swapped"),
        ("digits:swapped(4", 15, "expected '+' or the end, got '(4'"),
        ("digits:swapped(x)", 8, "expected the number of groups"),
        ("digits:swapped(0)", 8, "expected the number of groups"),
        ("digits:none(2)", 8, "expected none without a number"),
        ("digits:none+dirichelt(1)", 13, "'dirichelt' is no part: did you mean 'dirichlet'"),
        ("digits:none+dirichlet", 13, "expected a number above 0"),
        ("digits:none+dirichlet(nan)", 13, "expected a number above 0"),
        ("digits:none+classes(1.5)", 13, "expected labels per client"),
        ("digits:none+sizes(zif)", 13, "did you mean 'zipf'"),
        ("digits:none+sizes(equal,2)", 13, "expected sizes(equal) without a number"),
        ("digits:none+sizes(zipf,0)", 13, "expected a number above 0"),
        ("digits:none+sizes(zipf,1,2)", 13, "expected a number above 0"),
        ("digits:none+dirichlet(1,2)", 13, "expected a number above 0"),
        ("digits:none+dirichlet(1)+classes(2)", 26, "both say which labels"),
        ("digits:none+sizes(zipf)+sizes(equal)", 25, "'sizes' is given twice"),
        ("digits:none+participation(0.1)", 13, "'participation' is no part"),
    ],
)
def test_a_misspelling_says_where_it_is(text: str, place: int, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_scenario(text)
    assert str(caught.value).startswith(f"scenario {text!r}, character {place}: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("formula", "sizes", "why"),
    [
        ("digits:swapped(4)", {"groups": 2}, "has 4 groups: leave groups out"),
        ("digits:swapped(4)", {"clients": 3}, "at least 4 clients"),
        ("digits:none+dirichlet(1)", {"groups": 2}, "no hidden groups"),
        ("digits:swapped(46)", {"clients": 50}, "ask for 1..45"),
        ("digits:permuted(2)+classes(11)", {}, "ask for 1..10"),
        ("digits:permuted(2)+classes(2)+sizes(zipf)", {}, "ask for fewer samples"),
        ("digits:none+sizes(zipf)", {"samples": 3}, "ask for 5 or more"),
        ("digits:none+sizes(zipf)", {"clients": 1000}, "ask for at most 287 clients"),
        ("digits:swapped(2)+dirichlet(0.1)", {"samples": 10**6}, "samples per client"),
    ],
)
def test_what_cannot_be_made_says_what_to_change(formula: str, sizes: dict[str, int], why: str) -> None:
    with pytest.raises(CoterieError) as caught:
        find_scenario(formula).build(**sizes)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("skew", ["dirichlet(1e-300)", "dirichlet(0.001)", "dirichlet(1e300)"])
@pytest.mark.parametrize("law", ["", "+sizes(zipf,50)", "+sizes(lognormal,9)"])
def test_extreme_numbers_are_dealt_too(skew: str, law: str) -> None:
    made = find_scenario(f"digits:none+{skew}{law}").build(clients=40, seed=1)
    assert sum(held(client).total() for client in made) == len(load_source("digits").y)
    assert min(held(client).total() for client in made) >= 5


def test_missing_files_are_named(tmp_path) -> None:
    with pytest.raises(DataError, match="coterie data fetch fashion-mnist"):
        find_scenario("fashion:swapped(4)+dirichlet(0.3)").build(data_dir=tmp_path)
