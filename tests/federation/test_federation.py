"""What a federation accepts, how it divides data, and that every refusal names the client and the remedy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import DataError
from coterie.federation import Client, Federation, Split, as_target, as_tensor

GOOD = (np.ones((4, 2), np.float32), np.array([0, 1, 0, 1]))


def pair(n=4, width=2, dtype=np.float32, y=None):
    return np.ones((n, width), dtype), np.arange(n) % 2 if y is None else np.asarray(y)


@pytest.mark.parametrize(
    ("bad", "remedy"),
    [
        (pair(0), "no training samples: give it data or leave it out"),
        (pair(width=3), "all clients need the same"),
        (pair(dtype=np.int64), "all clients need the same"),
        (pair(y=[0.0, 1.0, 0.0, 1.0]), "all clients need the same"),
        (pair(y=[0, 1, 0, 7]), "label 7 is out of range, expected 0 to 1: renumber"),
        (pair(y=[0, 1, 0, -1]), "label -1 is out of range"),
        ((np.full((4, 2), np.nan, np.float32), GOOD[1]), "holds NaN or Inf: clean it"),
        ((np.array([[1, 1], [1, 1], [1, np.inf], [1, 1]], np.float32), GOOD[1]), "holds NaN or Inf"),
        ((np.ones((4, 2), np.float32), np.arange(3)), "give one target for each sample"),
        ((np.ones((4, 2), object), GOOD[1]), "numeric arrays"),
        ((np.ones((4, 2), complex), GOOD[1]), "numeric arrays"),
        ((np.array(["a"] * 4), GOOD[1]), "numeric arrays"),
        (7, "expected a pair (x, y)"),
        (np.float32(3), "expected a pair (x, y)"),
        ((1.0, 2.0), "one target for each sample"),
        ({"test": GOOD}, "at least train"),
        ({"train": GOOD, "tset": GOOD}, "rename or add"),
    ],
)
def test_bad_client_is_named_with_the_remedy(bad, remedy):
    with pytest.raises(DataError) as caught:
        Federation.from_tensors({"good": GOOD, "bad": bad}, classes=2)
    assert "'bad'" in str(caught.value)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


def test_finite_check_names_part_and_sample():
    x = np.ones((4, 2), np.float32)
    x[2, 1] = np.inf
    with pytest.raises(DataError, match=r"client 'b', test\.x: sample 2 "):
        Federation.from_tensors({"a": GOOD, "b": {"train": GOOD, "test": (x, GOOD[1])}})
    with pytest.raises(DataError, match=r"client 'r', train\.y: sample 1 "):
        Federation.from_tensors({"r": {"train": (x[:2], np.array([0.0, np.nan]))}}, splits=(1, 0, 0))


def test_huge_but_finite_numbers_are_accepted():
    Federation.from_tensors([(np.full((4, 2), 3e38, np.float32), GOOD[1])])


def test_duplicate_empty_and_missing_ids():
    with pytest.raises(DataError, match="'1' appears twice: give every client an id of its own"):
        Federation.from_tensors({1: GOOD, "1": GOOD})
    with pytest.raises(DataError, match="non-empty string"):
        Federation.from_tensors({"": GOOD})
    with pytest.raises(DataError, match="no clients"):
        Federation.from_tensors([])
    with pytest.raises(DataError, match="'1' has no entry in groups"):
        Federation.from_tensors([GOOD, GOOD], groups=[0])
    with pytest.raises(DataError, match="'b' has no entry in groups"):
        Federation.from_tensors({"a": GOOD, "b": GOOD}, groups={"a": 0})


def test_clients_made_by_hand_are_checked_too():
    good = Split(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(DataError, match="'c', validation: x has 4 samples and y has 3"):
        Federation([Client("c", good, Split(good.x, good.y[:3]), good)])


@pytest.mark.parametrize("splits", [(0.5, 0.5), (0.0, 0.5, 0.5), (0.9, 0.3, -0.2), (0.5, 0.1, 0.1)])
def test_fractions_that_make_no_split(splits):
    with pytest.raises(DataError, match="three fractions that sum to 1"):
        Federation.from_tensors([GOOD], splits=splits)


@given(
    n=st.integers(1, 60),
    weights=st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9)),
    seed=st.integers(0, 10),
)
def test_splits_are_seeded_disjoint_and_complete(n, weights, seed):
    splits = tuple(w / sum(weights) for w in weights)
    x = np.arange(n, dtype=np.float32)[:, None]
    made, again = (Federation.from_tensors({"c": (x, np.zeros(n, int))}, splits=splits, seed=seed) for _ in range(2))
    parts = [made["c"].part(p).x[:, 0].tolist() for p in ("train", "validation", "test")]
    assert sorted(itertools.chain(*parts)) == x[:, 0].tolist()
    assert len(parts[0]) >= 1
    assert parts == [again["c"].part(p).x[:, 0].tolist() for p in ("train", "validation", "test")]
    assert abs(len(parts[2]) - n * splits[2]) <= 1


def test_another_seed_or_client_divides_differently():
    data = (np.arange(50, dtype=np.float32)[:, None], np.zeros(50, int))
    one = Federation.from_tensors([data, data], seed=0)
    two = Federation.from_tensors([data, data], seed=1)
    assert one["0"].test.x.tolist() != two["0"].test.x.tolist()
    assert one["0"].test.x.tolist() != one["1"].test.x.tolist()


def test_given_parts_are_kept_and_what_is_missing_is_empty():
    made = Federation.from_tensors({"c": {"train": GOOD, "validation": pair(2)}})["c"]
    assert (len(made.train), len(made.validation), len(made.test)) == (4, 2, 0)


def test_types_of_inputs_and_targets():
    assert as_tensor(np.array([0, 255], np.uint8)).tolist() == [0.0, 1.0]
    assert as_tensor(np.array([1.5])).dtype == torch.float32
    assert as_tensor(np.array([3], np.int16)).dtype == torch.int64
    assert as_target(np.array([3, 255], np.uint8)).tolist() == [3, 255]
    assert as_target(np.array([0.5])).dtype == torch.float32
    kept = np.zeros(3, np.float32)
    assert as_tensor(kept).data_ptr() == kept.ctypes.data


def test_classes_groups_and_subset():
    made = Federation.from_tensors([GOOD, pair(6, y=[0, 1, 2, 0, 1, 2])], groups=[5, 6])
    assert (made.classes, made.groups, made.regression, made.input_shape) == (3, [5, 6], False, (2,))
    assert made.subset(["1"]).ids == ("1",)
    assert made.subset(["0"]).classes == 3
    assert (
        Federation([made["0"], Client("x", *[made["1"].part(p) for p in ("train", "validation", "test")])]).groups
        is None
    )
    real = Federation.from_tensors([(np.ones((4, 2), np.float32), np.ones(4))])
    assert (real.classes, real.regression) == (0, True)
    assert "1 clients" in repr(real)
