"""The grid of CFL's decisions: drawn by number, labelled, and summed up with every miss."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from coterie_recipes import cfl_grid
from coterie_recipes.cfl_grid import Case, draw, federation_of, judged, still_improving

EASY = Case(7, "digits", "permuted", 0.1, 3, 1.0, "mlp", 8, 2, False, 0.0, 6)


def test_a_number_is_one_case_and_the_grid_holds_all_kinds() -> None:
    assert draw(6001) == draw(6001)
    cases = [draw(number) for number in range(6001, 6301)]
    assert {case.kind for case in cases} == {"conflict", "congruent", "gain"}
    for setting, least in (("lr", 4), ("epochs", 3), ("participation", 3), ("clients", 4), ("model", 4), ("shift", 10)):
        assert len({getattr(case, setting) for case in cases}) >= least, setting


def test_unequal_groups_noise_and_inverted_inputs() -> None:
    sizes = Counter(c.group for c in federation_of(replace(EASY, clients=20, groups=4, unequal=True), None))
    assert sorted(sizes.values()) == [1, 2, 5, 12]
    plain, noisy = (federation_of(replace(EASY, noise=noise), None) for noise in (0.0, 0.2))
    changed = torch.cat([a.train.y != b.train.y for a, b in zip(plain, noisy, strict=True)]).double().mean()
    assert 0.1 < changed < 0.25
    assert all(torch.equal(a.test.y, b.test.y) for a, b in zip(plain, noisy, strict=True))
    turned = federation_of(replace(EASY, shift="inverted"), None)
    assert [c.group for c in turned][:3] == [0, 1, 0]
    assert turned.clients[1].train.x.mean() > 0.5 > turned.clients[0].train.x.mean()


def test_an_easy_conflict_is_right_and_misses_are_listed() -> None:
    found = cfl_grid.decide(EASY, None)
    assert found["outcome"] == "right"
    assert found["splits"] == [5]
    table = judged([(EASY, found), (replace(EASY, number=8), found | {"outcome": "torn"})])
    shares = {(row.setting, row.measure): row.ours for row in table.rows}
    assert shares["conflict (2 federations)", "right"] == [0.5]
    assert [note for note in table.notes if note.startswith("torn: 8: digits permuted, 8 clients")]


def test_still_improving_by_hand() -> None:
    assert still_improving([2 - 0.01 * i for i in range(100)])
    assert not still_improving([1 / (i + 1) + 1 for i in range(100)])
    assert still_improving([1.0] * 75 + [1.0 - 0.01 * i for i in range(25)])
