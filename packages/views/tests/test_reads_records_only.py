"""Report and live page know runs by their records: they import no method, and no private name of anybody's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie
import coterie_views

SOURCE, VIEWS = Path(coterie.__file__).parent, Path(coterie_views.__file__).parent
MODULES = sorted(path for name in ("report", "live") for path in (VIEWS / name).rglob("*.py"))


def imports(text: str) -> Iterator[tuple[str, str]]:
    """Modules that the text imports, each with the name it takes from it, or with an empty one."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            yield from ((node.module or "", alias.name) for alias in node.names)


def wrong(text: str) -> list[str]:
    """The imports that a reader of records has no use for."""
    found = []
    for module, name in imports(text):
        of_method = module.startswith("coterie.methods.") or (
            module == "coterie.methods" and (SOURCE / "methods" / f"{name}.py").exists()
        )
        private = module.startswith("coterie") and any(part.startswith("_") for part in (*module.split("."), name))
        if of_method or private or module == "coterie.runs.loop":
            found.append(f"{module} {name}".strip())
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(VIEWS)))
def test_no_module_imports_a_method_or_a_private_name(path: Path) -> None:
    assert wrong(path.read_text()) == []


def test_the_test_knows_what_is_wrong() -> None:
    assert len(MODULES) > 12
    for bad in (
        "import coterie.methods.cfl",
        "from coterie.methods.tree import Tree",
        "from coterie.methods import tree",
        "def f():\n    from coterie.runs.loop import execute",
        "from coterie.runs.loop import _record",
        "from coterie.runs.folder import _line",
    ):
        assert len(wrong(bad)) == 1, bad
    assert (
        wrong("from coterie.methods import Matrix\nfrom coterie.runs.records import RoundRecord\nimport _thread") == []
    )
