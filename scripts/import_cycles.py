"""Import cycles between the core's modules at run time: `python scripts/import_cycles.py` lists them and fails.

Imports inside functions count, those for type checkers do not. The layers of packages are import-linter's to check.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
Imports = dict[str, set[str]]


def import_graph(source: Path = SOURCE, package: str = "coterie") -> Imports:
    """The modules of the package that each of its modules imports at run time."""
    files = {_module(path.relative_to(source)): path for path in sorted((source / package).rglob("*.py"))}
    graph: Imports = {}
    for name, path in files.items():
        found = _imported(ast.parse(path.read_text(encoding="utf-8")))
        named = {whole if whole in files else module for module, whole in found}
        graph[name] = (named & set(files)) - {name}
    return graph


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Every imported module, alone and with the name that is taken from it, which may be a module too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, alias.name) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from ((str(child.module), f"{child.module}.{alias.name}") for alias in child.names)
        yield from _imported(child)


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that all reach one another by imports, each of two or more."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted(sorted(group) for group in groups if group)


def _reached(graph: Mapping[str, set[str]], name: str) -> set[str]:
    """The modules that are imported by a module, or by those that it imports."""
    found: set[str] = set()
    waiting = list(graph[name])
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += graph[one]
    return found


if __name__ == "__main__":
    found = cycles(import_graph())
    for group in found:
        print(f"these modules import one another: {', '.join(group)}", file=sys.stderr)
    sys.exit(bool(found))
