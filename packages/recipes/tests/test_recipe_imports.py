"""The recipes use Coterie's public API only."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie_recipes
from public_imports import inner_imports

PACKAGE = Path(coterie_recipes.__file__).parent


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_only_public_names_are_imported(path: Path) -> None:
    assert inner_imports(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "import coterie.runs.loop",
        "from coterie.runs.loop import execute",
        "from coterie.runs import loop",
        "from coterie.clustering.cosine import cosine_matrix",
        "from coterie.randomness import _path",
        "from coterie import cli",
        "from coterie.snapshot import saved",
        "from . import base",
        "def late():\n    from coterie.methods.server import Server",
    ],
)
def test_inner_names_are_found(line: str) -> None:
    assert len(inner_imports(line)) == 1


@pytest.mark.parametrize(
    "line", ["from coterie import __version__, run", "from coterie.randomness import derive", "import coterie_recipes"]
)
def test_public_names_pass(line: str) -> None:
    assert inner_imports(line) == []
