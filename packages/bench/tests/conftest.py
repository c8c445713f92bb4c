"""Settings for the benchmark's tests: one thread, and a GEMM peak that takes no time to measure."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def small_products(monkeypatch):
    """Measure the machine's peak with a product of small matrices."""
    monkeypatch.setattr("coterie_bench.measure.GEMM_SIDE", 64)
