"""IFCA's guarantees on small mixtures, and the count of models that nobody uses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from coterie_recipes import Study, ifca_theory, reproduce
from coterie_recipes.ifca_theory import Sizes, contraction, floor_of, largest


def test_the_error_halves_until_the_floor_and_stays_there() -> None:
    errors = largest(contraction(Sizes(m=40, n=50, d=20, sigma=0.05), seed=3)["errors"])
    assert errors[0] == pytest.approx(ifca_theory.SEPARATION / 4)
    assert all(after < 0.62 * before for before, after in pairwise(errors[:4]))
    assert errors[-1] < 0.02


def test_the_floor_follows_the_stated_rate() -> None:
    floors = {
        n: np.mean([floor_of(contraction(Sizes(m=40, n=n, d=20), seed)["errors"]) for seed in range(4)])
        for n in (40, 160)
    }
    assert floors[40] / floors[160] == pytest.approx(2, rel=0.2)
    assert Sizes(n=40).bound / Sizes(n=160).bound == pytest.approx(2)


def test_without_noise_nobody_chooses_wrongly() -> None:
    assert contraction(Sizes(m=20, n=40, d=10, sigma=0.0), seed=1)["wrong"] == 0


def test_recipes_report_every_size_and_every_number_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ifca_theory, "SIZES", {"small": Sizes(m=20, n=30, d=10)})
    rows = reproduce("ifca-theorem1", Study(tmp_path / "1", seeds=2, workers=1))["rows"]
    assert {row["setting"] for row in rows} == {"small"}
    monkeypatch.setattr(ifca_theory, "MODELS", (5,))
    found = {
        row["measure"]: row["ours"]["mean"] for row in reproduce("ifca-more-models", Study(tmp_path / "2"))["rows"]
    }
    assert 1 <= found["models in use at the end"] <= 5
    assert found["accuracy %"] > 50
