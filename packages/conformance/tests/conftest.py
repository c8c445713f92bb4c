"""Settings for the checks' tests: one thread, and FLT without UMAP, which takes 20 s per process to compile."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def without_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLT lays centroids out by their main directions, as it does few of them."""
    monkeypatch.setattr("coterie.clustering.manifold._UMAP_NEEDS", 10**9)
    monkeypatch.setattr("coterie.methods.flt.import_umap", lambda: None)
