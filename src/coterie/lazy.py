"""Packages whose names are loaded when they are first used, so that what needs no torch does not wait for it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> Callable[[str], Any]:
    """A package's `__getattr__`, which imports a name from where the package takes it for type checkers.

    Args:
        package: its `__name__`.
        file: its `__file__`, whose statements `from module import name` under `if TYPE_CHECKING` are read.
    """

    @cache
    def sources() -> dict[str, str]:
        blocks = [node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name not in sources():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(sources()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
