"""What the tests in this folder share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def without_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLT lays centroids out by their main directions, as it does few of them: UMAP takes 20 s per process to compile.

    UMAP itself is run in tests/methods/test_flt.py and tests/clustering/test_manifold.py.
    """
    monkeypatch.setattr("coterie.clustering.manifold._UMAP_NEEDS", 10**9)
    monkeypatch.setattr("coterie.methods.flt.import_umap", lambda: None)
