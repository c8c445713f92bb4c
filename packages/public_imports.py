"""Which imports of Coterie are public: the tests of the packages beside the core check themselves with this."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module

CURATED = frozenset(
    f"coterie.{name}"
    for name in (
        "clustering",
        "data",
        "encoders",
        "engines",
        "federation",
        "flower",
        "methods",
        "models",
        "privacy",
        "runs",
        "tasks",
        "trainers",
    )
) | {"coterie"}
"""Packages of which only the names in `__all__` are public."""
MODULES = frozenset(
    f"coterie.{name}"
    for name in (
        "benefit",
        "cli.options",
        "cli.progress",
        "cli.terminal",
        "clustering.conformal",
        "methods.needs",
        "runs.prepared",
        "errors",
        "federation.client",
        "federation.corrections",
        "federation.folders",
        "federation.images",
        "federation.labels",
        "federation.table_columns",
        "federation.table_files",
        "federation.table_sites",
        "federation.table_statistics",
        "federation.tables",
        "lazy",
        "methods.averaging",
        "methods.base",
        "methods.choices",
        "methods.compared",
        "methods.served",
        "methods.closed_form",
        "methods.graph_averaging",
        "methods.groups",
        "models.ensemble",
        "option_types",
        "methods.placing",
        "methods.published",
        "methods.relatives",
        "methods.splitting",
        "methods.tree",
        "metrics",
        "parameters",
        "randomness",
        "plugins",
        "runs.config",
        "runs.folder",
        "runs.matrices",
        "runs.records",
        "runs.rows",
        "runs.target_scaling",
        "runs.words",
        "trainers.losses",
    )
)
"""Plain modules of which every name without a leading underscore is public."""


def inner_imports(source: str) -> list[str]:
    """The imports of a Python source that reach for something in Coterie that is not public, or are relative."""
    found = []
    for module, name in _imports(source):
        if module.startswith("."):
            found.append(f"{module}: a relative import, which hides what is imported")
        elif module.partition(".")[0] != "coterie":
            continue
        elif name is None or module not in CURATED | MODULES:
            found.append(f"{module}: not a public module")
        elif not _is_public(module, name):
            found.append(f"{module}.{name}: not a public name")
    return found


def _imports(source: str) -> Iterator[tuple[str, str | None]]:
    """Every (module, name) that is imported; the name is None for `import module`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{'.' * node.level}{node.module or ''}", alias.name) for alias in node.names)


def _is_public(module: str, name: str) -> bool:
    if name == "__version__":
        return module == "coterie"
    if module in CURATED:
        return name in import_module(module).__all__
    return not name.startswith("_")
