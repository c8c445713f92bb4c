"""CUAU by hand and in blocks, and percentile clusters that are a partition whatever the values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering import cuau, percentile_clusters
from coterie.clustering.cosine import COLUMNS


def test_by_hand() -> None:
    updates = np.array([[0, 0], [4, 0], [0, 4]], dtype=np.float32)
    # n = (2, 1, 1): AU = (1, 1).
    np.testing.assert_allclose(cuau(updates, [2, 1, 1]), [np.sqrt(2), np.sqrt(10), np.sqrt(10)])


def test_equals_the_plain_formula_over_many_blocks_for_arrays_and_tensors() -> None:
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(7, 2 * COLUMNS + 5)).astype(np.float32)
    samples = rng.integers(1, 50, 7)
    mean = np.average(updates.astype(np.float64), axis=0, weights=samples)
    expected = np.linalg.norm(updates - mean, axis=1)
    np.testing.assert_allclose(cuau(updates, samples), expected, rtol=1e-12)
    np.testing.assert_array_equal(cuau(torch.from_numpy(updates), samples), cuau(updates, samples))


def test_identical_clients_do_not_diverge_and_scale_of_samples_is_immaterial() -> None:
    updates = np.full((4, 3), 0.1, dtype=np.float32)
    assert cuau(updates, [1, 2, 3, 4]).max() < 1e-15
    spread = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(cuau(spread, [1, 2, 3, 4]), cuau(spread, [10, 20, 30, 40]))


@pytest.mark.parametrize("samples", [[1, 2], [0, 0, 0], [1, -1, 1]])
def test_samples_that_give_no_weights_are_refused(samples: list[int]) -> None:
    with pytest.raises(ValueError, match="samples"):
        cuau(np.ones((3, 2)), samples)


def test_clusters_by_hand() -> None:
    assert percentile_clusters([0.4, 0.1, 0.3, 0.2], 2).tolist() == [1, 0, 1, 0]
    assert percentile_clusters([5, 5, 5, 5, 5], 2).tolist() == [0, 0, 0, 1, 1]
    assert percentile_clusters([3, 1, 2], 3).tolist() == [2, 0, 1]
    assert percentile_clusters([3, 1, 2], 1).tolist() == [0, 0, 0]


@given(values=st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.0]), min_size=1, max_size=30), data=st.data())
def test_clusters_are_a_balanced_ordered_partition_with_any_ties(values: list[float], data: st.DataObject) -> None:
    clusters = data.draw(st.integers(1, len(values)))
    labels = percentile_clusters(values, clusters)
    sizes = np.bincount(labels, minlength=clusters)
    assert len(sizes) == clusters
    assert sizes.sum() == len(values)
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1
    assert labels[int(np.argmin(values))] == 0
    ranked = sorted(range(len(values)), key=lambda client: (values[client], client))
    assert (np.diff(labels[ranked]) >= 0).all()


@pytest.mark.parametrize("clusters", [0, 4])
def test_impossible_numbers_of_clusters_are_refused(clusters: int) -> None:
    with pytest.raises(ValueError, match="expected 1 to 3"):
        percentile_clusters([1, 2, 3], clusters)


def test_values_without_rank_are_refused() -> None:
    with pytest.raises(ValueError, match="nan"):
        percentile_clusters([1, np.nan], 1)
