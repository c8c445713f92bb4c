"""Sketches keep cosine similarities: almost exactly for short vectors, within a few hundredths for long ones."""

from __future__ import annotations

import pytest
import torch

from coterie.clustering.sketch import EXACT, WIDTH, similarity, sketch


@pytest.mark.parametrize(("d", "error"), [(50, 2e-3), (EXACT, 2e-3), (EXACT + 1, 0.05), (200_000, 0.05)])
def test_similarities_survive(d: int, error: float) -> None:
    generator = torch.Generator().manual_seed(d)
    base = torch.randn(1, d, generator=generator)
    vectors = base + 0.7 * torch.randn(12, d, generator=generator)
    kept = sketch(vectors)
    assert kept.dtype == torch.float16
    assert kept.shape == (12, min(d, WIDTH if d > EXACT else d))
    unit = torch.nn.functional.normalize(vectors, dim=1)
    told = torch.stack([similarity(row, kept) for row in kept])
    assert float((told - unit @ unit.T).abs().max()) < error


def test_a_zero_vector_is_similar_to_nothing() -> None:
    kept = sketch(torch.stack([torch.zeros(40), torch.ones(40)]))
    assert similarity(kept[1], kept).tolist() == pytest.approx([0.0, 1.0], abs=1e-3)
