"""The adjusted Rand index against scikit-learn, and both distances of models to truths against all permutations."""

from __future__ import annotations

import importlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering import adjusted_rand_index, matched_distance, paper_distance

# Imported by name, because scikit-learn has no type hints.
adjusted_rand_score = importlib.import_module("sklearn.metrics").adjusted_rand_score

LABELS = st.integers(1, 25).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(-1, 4), min_size=n, max_size=n) for _ in range(2)])
)


@given(LABELS)
def test_index_equals_scikit_learn(labels: tuple[list[int], list[int]]) -> None:
    assert adjusted_rand_index(*labels) == pytest.approx(adjusted_rand_score(*labels), abs=1e-12)


def test_index_by_hand() -> None:
    assert adjusted_rand_index([0, 0, 1, 1], ["b", "b", "a", "a"]) == 1
    # Pairs: 2 and 2 of 6, none in both; by chance 2/3: (0 − 2/3) / (2 − 2/3).
    assert adjusted_rand_index([0, 0, 1, 1], [0, 1, 0, 1]) == pytest.approx(-0.5)
    assert adjusted_rand_index([0, 0, 0], [0, 1, 2]) == 0
    assert adjusted_rand_index([], []) == 1
    with pytest.raises(ValueError, match="one length"):
        adjusted_rand_index([0, 1], [0])


@given(seed=st.integers(0, 10**9), k=st.integers(1, 5))
def test_matched_distance_is_the_best_permutation_and_never_below_the_papers(seed: int, k: int) -> None:
    models, truths = np.random.default_rng(seed).normal(size=(2, k, 3))
    orders = itertools.permutations(range(k))
    best = min(float(np.linalg.norm(models - truths[list(order)], axis=1).mean()) for order in orders)
    assert matched_distance(models, truths) == pytest.approx(best)
    assert paper_distance(models, truths) <= matched_distance(models, truths) + 1e-12


def test_two_models_on_one_truth_fool_the_papers_distance_only() -> None:
    truths = [[0.0, 0.0], [3.0, 4.0]]
    assert paper_distance([[0.0, 0.0], [0.0, 0.0]], truths) == 0
    assert matched_distance([[0.0, 0.0], [0.0, 0.0]], truths) == 2.5
    assert paper_distance([[3.0, 4.0], [0.0, 1.0]], truths) == matched_distance([[3.0, 4.0], [0.0, 1.0]], truths) == 0.5


def test_unequal_numbers_of_models_and_truths_are_refused() -> None:
    with pytest.raises(ValueError, match="same"):
        matched_distance(np.zeros((2, 3)), np.zeros((3, 3)))
