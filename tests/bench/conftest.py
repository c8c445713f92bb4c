"""Settings for the benchmark's tests: a peak that takes no time to measure."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def small_products(monkeypatch):
    """Measure the machine's peak with a product of small matrices."""
    monkeypatch.setattr("coterie.bench.measure.GEMM_SIDE", 64)
