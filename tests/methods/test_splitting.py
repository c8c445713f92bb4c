"""The rules of when to split: known curves, the paper's thresholds, and the parts of held-out benefit."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.errors import ConfigError
from coterie.methods.compared import ComparedHalves
from coterie.methods.splitting import PaperRule, make_rule
from coterie.methods.splitting.candidates import (
    Candidate,
    Looks,
    bipartitions,
    candidates,
    known_of,
    pooled,
    reproduces,
)
from coterie.methods.splitting.flattened import exponents, has_flattened, local_exponent
from coterie.methods.splitting.paper import Seen


@given(p=st.floats(0.0, 2.0), scale=st.floats(0.01, 100.0), n=st.integers(8, 200))
def test_the_exponent_of_a_power_law_is_its_power(p: float, scale: float, n: int) -> None:
    losses = [scale * t**-p for t in range(1, n + 1)]
    assert local_exponent(losses, n // 2, n) == pytest.approx(p, abs=1e-6)
    assert exponents(losses) == pytest.approx((p, p), abs=1e-6)


def test_a_plateau_has_flattened_a_power_law_has_not_nor_a_slow_start() -> None:
    falling = [2.3 * t**-0.8 for t in range(1, 41)]
    plateau = [1.6 + 0.7 * math.exp(-t / 5) for t in range(1, 41)]
    slow_start = [2.3 - 0.00004 * t**2.5 for t in range(1, 41)]
    assert not has_flattened(falling, 0.3)
    assert has_flattened(plateau, 0.3)
    assert exponents(slow_start)[0] < 0.3
    assert not has_flattened(slow_start, 0.3)
    assert not has_flattened(plateau[:7], 0.3)


def test_the_papers_thresholds_with_numbers_and_auto() -> None:
    assert PaperRule(eps1=0.4, eps2=1.6).thresholds(Seen(largest=5.0)) == {"eps1": 0.4, "eps2": 1.6}
    assert PaperRule().thresholds(Seen(largest=5.0)) == {"eps1": 0.5, "eps2": 2.0}


def test_a_rule_is_written_as_its_name_with_options() -> None:
    assert make_rule("paper(eps1=0.4, gamma_max=auto)") == PaperRule(eps1=0.4)
    assert make_rule("benefit(level=0.01)").level == 0.01
    for wrong in ("paper(", "paper()x", "3"):
        with pytest.raises(ConfigError, match="rule="):
            make_rule(wrong)
    with pytest.raises(ConfigError, match="SplitRule"):
        make_rule(7)


def halves_of_groups(sizes: tuple[int, ...], noise: float, seed: int, d: int = 40) -> ComparedHalves:
    """Half-updates of clients of several groups: a direction of the group's own, and noise of each half."""
    random = np.random.default_rng(seed)
    centres = np.linalg.qr(random.standard_normal((d, len(sizes))))[0].T
    group = np.repeat(np.arange(len(sizes)), sizes)
    vectors = torch.tensor(centres[group] + noise * random.standard_normal((2, len(group), d)) / math.sqrt(d))
    return ComparedHalves(tuple(f"c{i}" for i in range(len(group))), vectors, None)


@pytest.mark.parametrize("sizes", [(4, 4), (7, 3), (5, 1)])
def test_two_groups_are_among_the_candidates_and_reproduce(sizes: tuple[int, int]) -> None:
    halves = halves_of_groups(sizes, 0.5, 0)
    truth = np.arange(sum(sizes)) >= sizes[0]
    found = candidates(pooled(Looks(), halves))
    right = [one for one in found if all((side == truth).all() for side in (*one.by_half, one.both))]
    assert len(right) == 1  # all three ways find it, and it is tried once
    assert reproduces(right[0], halves)


def test_without_groups_hardly_anything_reproduces() -> None:
    kept = 0
    for seed in range(200):
        halves = halves_of_groups((12,), 2.0, seed)
        kept += any(reproduces(one, halves) for one in candidates(pooled(Looks(), halves)))
    assert kept <= 0.15 * 200  # three candidates at a level of 0.05 each


def test_cosines_of_several_looks_are_averaged_pair_by_pair() -> None:
    first, second = halves_of_groups((3, 3), 1.0, 0), halves_of_groups((3, 3), 1.0, 1)
    early = ComparedHalves(first.clients[:4], first.vectors[:, :4], None)
    memory = pooled(pooled(Looks(), early), second)
    assert memory.pairs is not None
    assert memory.cosines is not None
    assert memory.pairs[0, 1] == 2
    assert memory.pairs[0, 5] == 1
    unit = [torch.nn.functional.normalize(h.vectors, dim=2) for h in (first, second)]
    by_hand = sum(float(u[1, 0] @ u[1, 2]) for u in unit)
    assert memory.cosines[1, 0, 2] == pytest.approx(by_hand, abs=1e-6)
    child = known_of(memory, ["c5", "c1"])
    assert child.clients == ("c1", "c5")
    assert child.cosines is not None
    assert child.cosines[0, 0, 1] == memory.cosines[0, 1, 5]


@pytest.mark.parametrize("seed", range(20))
def test_the_last_of_the_ways_to_cut_is_the_papers_optimum(seed: int) -> None:
    """Brute force over all bipartitions: none has a smaller largest similarity across."""
    vectors = np.random.default_rng(seed).standard_normal((6, 4))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = unit @ unit.T
    cross = {
        sides: similarity[np.ix_(~np.array(sides), np.array(sides))].max()
        for sides in product([False, True], repeat=6)
        if not sides[0] and any(sides)
    }
    *_, closest = bipartitions(similarity)
    assert cross[tuple(closest.tolist())] == pytest.approx(min(cross.values()))


def test_two_clients_can_be_cut_in_one_way() -> None:
    assert [side.tolist() for side in bipartitions(np.eye(2))] == [[False, True]]
    assert reproduces(
        Candidate((np.array([False, True]),) * 2, np.array([False, True])), halves_of_groups((1, 1), 1.0, 0)
    )


def test_updates_that_cancel_split_where_the_mean_norm_has_not_fallen_to_a_tenth() -> None:
    assert PaperRule(eps1="cancelled").thresholds(Seen(largest=5.0, longest=2.0)) == {"eps1": 0.2, "eps2": 0.8}
    result = coterie.run("cfl:as=paper,rule=paper(eps1=cancelled)", scenario="digits-permuted", rounds=55, workers=1)
    norms = [record.clusters[0].mean_norm or 0.0 for record in result.history if len(record.clusters) == 1]
    assert min(norms) > 0.1 * max(norms)
    assert len(result.clusters) == 2
    assert (result.summary.ari or 0) > 0.2  # no group is in two clusters
