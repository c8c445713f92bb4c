"""Families by shared words: one unless the evidence says several, groups that overlap or are small included."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from coterie.clustering import adjusted_rand_index
from coterie.clustering.families import (
    count_words,
    find_families,
    shuffled,
    unlike,
    unshared,
)

PATCHES = 10
CENTRES = np.stack([np.cos(np.arange(PATCHES)), np.sin(np.arange(PATCHES))], axis=1) * 8


def laid_out(sets: list[list[int]], seed: int, k: int = 5) -> np.ndarray:
    """Positions `(M, k, 2)` of clients whose centroids lie in the given patches, in turn."""
    rng = np.random.default_rng(seed)
    chosen = [[own[i % len(own)] for i in range(k)] for own in sets]
    return np.asarray(CENTRES[np.array(chosen)] + 0.2 * rng.normal(size=(len(sets), k, 2)))


def groups_of(sizes: list[int]) -> list[int]:
    return [group for group, size in enumerate(sizes) for _ in range(size)]


@pytest.mark.parametrize("sizes", [[10, 10, 10], [4, 4, 4, 4, 4], [20, 10, 6, 4]])
@pytest.mark.parametrize("overlap", [0, 1])
def test_groups_are_found_untold_small_ones_and_neighbours_that_share_a_patch_too(
    sizes: list[int], overlap: int
) -> None:
    cuts = [round(g * PATCHES / len(sizes)) for g in range(len(sizes) + 1)]
    sets = [[patch % PATCHES for patch in range(a, b + overlap)] for a, b in pairwise(cuts)]
    truth = groups_of(sizes)
    for seed in range(3):
        found = find_families(laid_out([sets[g] for g in truth], seed))
        assert adjusted_rand_index(found.labels, truth) == 1.0
        assert found.several
        assert found.excess == found.silhouette - found.expected


def test_clients_that_draw_from_the_same_patches_are_one_family() -> None:
    wrong = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        alike = [list(rng.choice(PATCHES, 5, replace=False)) for _ in range(30)]
        skewed = [list(rng.choice(PATCHES, 5, p=rng.dirichlet([0.5] * PATCHES))) for _ in range(30)]
        wrong += sum(find_families(laid_out(sets, seed)).several for sets in (alike, skewed))
    assert wrong == 0


def test_duplicates_and_few_clients_are_one_family() -> None:
    same = np.repeat(laid_out([[0, 1, 2, 3, 4]], 0), 12, axis=0)
    assert not find_families(same).several
    assert not find_families(np.zeros((12, 5, 2))).several
    for clients in (1, 2, 3):
        assert find_families(laid_out([[0, 1]] * clients, 1)).labels.tolist() == [0] * clients


def test_several_layouts_outvote_one_that_draws_two_patches_into_each_other() -> None:
    truth = groups_of([5, 5, 5, 5])
    good = [laid_out([[2 * g, 2 * g + 1] for g in truth], seed) for seed in range(3)]
    drawn_together = laid_out([[2 * (g % 3), 2 * (g % 3) + 1] for g in truth], 3)
    assert adjusted_rand_index(find_families(drawn_together).labels, truth) < 1.0
    found = find_families(*good, drawn_together)
    assert adjusted_rand_index(found.labels, truth) == 1.0
    alone = [find_families(layout) for layout in (*good, drawn_together)]
    assert found.silhouette == pytest.approx(np.mean([each.silhouette for each in alone]))
    assert find_families(drawn_together, *good).layout > 0


def test_missing_centroids_and_the_order_of_clients_change_nothing() -> None:
    truth = groups_of([8, 8, 8])
    positions = laid_out([[3 * g, 3 * g + 1, 3 * g + 2] for g in truth], 5)
    positions[::3, 4] = np.nan
    order = np.random.default_rng(0).permutation(len(truth))
    assert adjusted_rand_index(find_families(positions).labels, truth) == 1.0
    assert adjusted_rand_index(find_families(positions[order]).labels, np.array(truth)[order]) == 1.0
    counts = count_words(positions)[0]
    assert counts.sum(axis=1).tolist() == (~np.isnan(positions[:, :, 0])).sum(axis=1).tolist()


def test_what_two_clients_do_not_share_is_worked_by_hand() -> None:
    counts = np.array([[5, 0, 0], [0, 4, 1], [3, 1, 1], [2, 0, 0]])
    assert unshared([counts]) == pytest.approx([1, 0.4, 0, 0.6, 1, 0.4])
    assert unshared([counts, np.array([[1], [2], [3], [1]])]) == pytest.approx([0.5, 0.2, 0, 0.3, 0.5, 0.2])


def test_the_null_model_keeps_every_clients_numbers_and_the_words_popularity() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(5, [0.5, 0.3, 0.15, 0.05, 0.0], size=300)
    drawn = shuffled([counts], rng)[0]
    np.testing.assert_array_equal(np.sort(drawn, axis=1), np.sort(counts, axis=1))
    assert drawn[:, 4].sum() == 0
    totals = np.mean([shuffled([counts], rng)[0].sum(axis=0) for _ in range(20)], axis=0)
    assert (np.argsort(totals) == np.argsort(counts.sum(axis=0))).all()


def test_unlike_clients_are_told_from_alike_ones_at_the_stated_rate() -> None:
    rng = np.random.default_rng(1)
    even = [rng.multinomial(5, [0.1] * 10, size=20) for _ in range(100)]
    assert sum(unlike(counts, seed) for seed, counts in enumerate(even)) <= 4  # 1 % and three standard errors
    skewed = np.stack([rng.multinomial(5, p) for p in rng.dirichlet([0.3] * 10, 20)])
    assert unlike(skewed)
