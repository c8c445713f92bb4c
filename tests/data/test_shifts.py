"""Shifts: numbers worked by hand, and the conflict between groups that they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.data.shifts import group_permutations, group_swaps, permute_labels, rotate, swap_labels
from coterie.errors import DataError


def test_rotate_by_hand() -> None:
    image = np.array([[[[1, 2], [3, 4]]]], dtype=np.uint8)
    assert rotate(image, 1).tolist() == [[[[2, 4], [1, 3]]]]  # counter-clockwise: the right column comes on top
    assert rotate(image, 2).tolist() == [[[[4, 3], [2, 1]]]]
    assert rotate(image, 0).tolist() == image.tolist()
    assert rotate(image, 1).dtype == np.uint8


@given(st.integers(-8, 8))
def test_rotate_is_the_same_for_tensors_and_returns_by_four(turns: int) -> None:
    image = np.arange(2 * 3 * 5 * 5, dtype=np.float32).reshape(2, 3, 5, 5)
    turned = rotate(image, turns)
    assert np.array_equal(turned, rotate(torch.from_numpy(image), turns).numpy())
    assert np.array_equal(rotate(turned, -turns), image)
    assert not np.shares_memory(turned, image)


def test_rotate_refuses_what_would_change_shape() -> None:
    with pytest.raises(DataError, match="square"):
        rotate(np.zeros((1, 2, 3)), 1)
    assert rotate(np.zeros((1, 2, 3)), 2).shape == (1, 2, 3)


def test_swap_and_permute_by_hand() -> None:
    tensor = torch.tensor([0, 1, 2, 1])
    assert swap_labels(tensor, 1, 2).tolist() == [0, 2, 1, 2]
    assert permute_labels(tensor, [2, 0, 1]).tolist() == [2, 0, 1, 0]
    assert tensor.tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize("permutation", [[0, 0, 1], [1, 2, 3], [0, 1]])
def test_permute_refuses_what_is_no_permutation_of_the_labels(permutation: list[int]) -> None:
    with pytest.raises(DataError):
        permute_labels(torch.tensor([0, 1, 2]), permutation)


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 2**32))
def test_group_permutations_conflict_on_every_label(classes: int, groups: int, seed: int) -> None:
    if groups > np.prod(np.arange(1, classes + 1)):
        with pytest.raises(DataError, match="distinct"):
            group_permutations(classes, groups, seed)
        return
    rows = group_permutations(classes, groups, seed)
    assert rows.shape == (groups, classes)
    assert (np.sort(rows, axis=1) == np.arange(classes)).all()
    assert len({tuple(row) for row in rows}) == groups
    latin = rows[: min(groups, classes)]
    assert all(len(set(column)) == len(latin) for column in latin.T.tolist())
    assert np.array_equal(rows, group_permutations(classes, groups, seed))


def test_group_permutations_depend_on_the_seed() -> None:
    assert len({group_permutations(10, 4, seed).tobytes() for seed in range(20)}) == 20


@given(st.integers(2, 12), st.integers(0, 2**32))
def test_group_swaps_use_every_pair_once_and_start_disjoint(classes: int, seed: int) -> None:
    limit = classes * (classes - 1) // 2
    pairs = group_swaps(classes, limit, seed)
    assert len(set(pairs)) == limit
    assert all(0 <= a < b < classes for a, b in pairs)
    first = [label for pair in pairs[: classes // 2] for label in pair]
    assert len(set(first)) == len(first)
    assert group_swaps(classes, 1, seed) == pairs[:1]
    with pytest.raises(DataError, match=f"1..{limit}"):
        group_swaps(classes, limit + 1, seed)
