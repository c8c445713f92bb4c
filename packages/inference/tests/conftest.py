"""Settings for the tests of inference: one thread."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def without_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLT lays few centroids out by their main directions: UMAP takes 20 s per process to compile."""
    monkeypatch.setattr("coterie.clustering.manifold._UMAP_NEEDS", 10**9)
    monkeypatch.setattr("coterie.methods.flt.import_umap", lambda: None)
