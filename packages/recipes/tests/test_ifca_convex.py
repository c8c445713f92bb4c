"""IFCA's Theorem 2: the population's minimiser, the contraction of every round, and the floor's rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from coterie_recipes import ifca_convex
from coterie_recipes.base import Study, reproduce
from coterie_recipes.ifca_convex import SLOPE, Sizes, descent, minimiser, rates


def test_the_minimiser_has_no_gradient_on_many_samples() -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal(2_000_000)
    for ridge in (0.025, 0.1, 1.0):
        length = minimiser(ridge)
        gradient = ((expit(length * z) - expit(SLOPE * z)) * z).mean() + ridge * length
        assert gradient == pytest.approx(0.0, abs=2e-3)
        assert 0 < length < SLOPE


@pytest.mark.parametrize("seed", range(3))
def test_no_round_contracts_less_than_the_theorem_says(seed: int) -> None:
    for sizes in (Sizes(), Sizes(p=0.25), Sizes(ridge=0.025)):
        ratio, floor = rates(descent(sizes, seed))
        assert ratio <= sizes.contraction
        assert floor < 0.25


def test_the_table_has_the_bound_beside_the_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ifca_convex, "SIZES", {"small": Sizes(m=20)})
    rows = {row["measure"]: row for row in reproduce("ifca-theorem2", Study(tmp_path / "out", workers=1))["rows"]}
    assert rows["largest error after a round / before, above the floor"]["paper"].startswith("≤ 0.98")
