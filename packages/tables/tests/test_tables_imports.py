"""Table checks use Coterie's public API only."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie_tables
from public_imports import inner_imports

PACKAGE = Path(coterie_tables.__file__).parent


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_only_public_names_are_imported(path: Path) -> None:
    assert inner_imports(path.read_text(encoding="utf-8")) == []
