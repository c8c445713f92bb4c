"""Facts about norms and cosine matrices: exact symmetry, range, zero updates, precision, independence of layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering import cosine_matrix, norms
from coterie.clustering.cosine import COLUMNS, STRIP


def reference(updates: np.ndarray) -> np.ndarray:
    wide = updates.astype(np.float64)
    unit = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


def test_hand_worked_angles() -> None:
    updates = np.array([[2.0, 0.0], [3.0, 3.0], [-1.0, 0.0]], dtype=np.float32)
    half = np.sqrt(0.5)
    expected = [[1, half, -1], [half, 1, -half], [-1, -half, 1]]
    np.testing.assert_allclose(cosine_matrix(updates), expected, atol=1e-7)
    np.testing.assert_allclose(norms(updates), [2, np.sqrt(18), 1], rtol=1e-15)


@settings(max_examples=40, deadline=None)
@given(clients=st.integers(1, 12), d=st.integers(1, 40), seed=st.integers(0, 10**6), double=st.booleans())
def test_matches_the_plain_formula_and_is_a_similarity_matrix(clients: int, d: int, seed: int, double: bool) -> None:
    drawn = np.random.default_rng(seed).normal(size=(clients, d))
    updates = drawn if double else drawn.astype(np.float32)
    similarity = cosine_matrix(updates)
    assert similarity.dtype == np.float64
    assert np.array_equal(similarity, similarity.T)
    assert np.abs(similarity).max() <= 1
    assert (np.diag(similarity) == 1).all()
    np.testing.assert_allclose(similarity, reference(updates), atol=1e-14 if double else 1e-6)


def test_many_strips_and_many_column_blocks() -> None:
    updates = np.random.default_rng(0).normal(size=(STRIP + 37, 2 * COLUMNS + 11)).astype(np.float32)
    similarity = cosine_matrix(updates)
    assert np.array_equal(similarity, similarity.T)
    np.testing.assert_allclose(similarity, reference(updates), atol=1e-6)
    np.testing.assert_allclose(norms(updates), np.linalg.norm(updates.astype(np.float64), axis=1), rtol=1e-12)


def test_zero_update_is_similar_to_nobody_but_itself() -> None:
    similarity = cosine_matrix(np.array([[1, 2], [0, 0], [0, 0]], dtype=np.float32))
    assert np.array_equal(similarity, np.eye(3))


@pytest.mark.parametrize("scale", [1e-42, 1e-33, 1e-20, 1e20, 1e33])
def test_tiny_and_huge_updates_keep_their_direction(scale: float) -> None:
    updates = np.array([[3, 4], [4, 3]], dtype=np.float64)
    scaled = (updates * [[scale], [1.0]]).astype(np.float32)
    assert cosine_matrix(scaled)[0, 1] == pytest.approx(0.96, abs=1e-6 if scale > 1e-35 else 2e-3)


def test_identical_and_opposite_updates_stay_within_one() -> None:
    row = np.random.default_rng(3).normal(size=(1, 5000)).astype(np.float32)
    similarity = cosine_matrix(np.concatenate([row, 7 * row, -0.3 * row]))
    assert similarity.max() <= 1
    assert similarity.min() >= -1
    np.testing.assert_allclose(similarity, [[1, 1, -1], [1, 1, -1], [-1, -1, 1]], atol=1e-6)


def test_same_result_for_tensor_array_read_only_and_strided_input() -> None:
    updates = np.random.default_rng(1).normal(size=(9, 100)).astype(np.float32)
    expected = cosine_matrix(updates)
    frozen = updates.copy()
    frozen.flags.writeable = False
    wide = np.zeros((9, 200), dtype=np.float32)
    wide[:, ::2] = updates
    for form in (torch.from_numpy(updates), frozen, wide[:, ::2], torch.from_numpy(updates).requires_grad_()):
        assert np.array_equal(cosine_matrix(form), expected)


def test_half_precision_is_computed_in_single() -> None:
    updates = torch.randn(6, 3000, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    np.testing.assert_allclose(cosine_matrix(updates), reference(updates.float().numpy()), atol=1e-6)


def test_input_is_left_as_it_was() -> None:
    updates = np.ones((3, 4), dtype=np.float32)
    cosine_matrix(updates)
    assert (updates == 1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_update_that_is_not_finite_is_named(bad: float) -> None:
    updates = np.ones((3, 4), dtype=np.float32)
    updates[1, 2] = bad
    with pytest.raises(ValueError, match="update 1"):
        cosine_matrix(updates)


def test_vector_instead_of_block_is_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        cosine_matrix(np.ones(3))
