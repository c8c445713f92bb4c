"""The views use Coterie's public API only."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie_views
from public_imports import inner_imports

PACKAGE = Path(coterie_views.__file__).parent


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_public_names_are_imported(path: Path) -> None:
    assert inner_imports(path.read_text(encoding="utf-8")) == []
