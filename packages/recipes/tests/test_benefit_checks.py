"""The recipes that hold held-out benefit to its word: what they count, by hand, and one small execution."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import coterie
from coterie_recipes import benefit_checks
from coterie_recipes.base import Study
from coterie_recipes.benefit_checks import KINDS, SIZES, conflicts, one_distribution


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_a_federation_of_one_distribution_repeats_and_has_the_sizes_that_its_name_says(kind: str, sizes: str) -> None:
    first, again, other = (one_distribution(kind, sizes, seed) for seed in (3, 3, 4))
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(first, again, strict=True))
    one, different = next(iter(first)), next(iter(other))
    assert not torch.equal(one.train.x[:1], different.train.x[:1])
    assert (len({len(client.train) for client in first}) == 1) == (sizes == "equal sizes")


def test_pairs_in_conflict_by_hand() -> None:
    result = coterie.run("local", scenario="digits-permuted", clients=4, samples=20, rounds=1, workers=1)
    assert conflicts(result, dict(zip(result.clusters[0] + result.clusters[1], "ab", strict=True))) == 0.0
    whole = coterie.run("fedavg", scenario="digits-permuted", clients=4, samples=20, rounds=1, workers=1)
    [ids] = whole.clusters
    assert conflicts(whole, dict(zip(ids, "aabc", strict=True))) == 1.0


def test_shares_count_splits_that_were_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {"equal sizes": {"ever": True, "end": False}, "unequal sizes": {"ever": False, "end": False}}
    study = Study(tmp_path, workers=1)
    monkeypatch.setattr(study, "cells", lambda jobs: {name: cells[name.split(", ")[1]] for name in jobs})
    everything, at_the_end = benefit_checks.benefit_level(study).rows[-2:]
    assert everything.setting == "all (6 federations)"
    assert (everything.ours, at_the_end.ours) == ([0.5], [0.0])
