"""Coterie stands on what Flower documents: its private modules are optional, and probed where they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest
from flwr.app import ArrayRecord

import coterie
from coterie.errors import ConfigError
from coterie.flower import CFL, warm

PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation"}
"""The modules of Flower's API reference that are used."""


def private_imports(node: ast.AST, guarded: bool = False) -> Iterator[tuple[str, bool]]:
    """The imports of other modules of Flower under a node, and whether an ImportError is caught around them."""
    for child in ast.iter_child_nodes(node):
        names = []
        if isinstance(child, ast.ImportFrom) and child.module:
            names = [child.module]
        elif isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        for name in names:
            if name.partition(".")[0] == "flwr" and name not in PUBLIC:
                yield name, guarded
        caught = isinstance(child, ast.Try) and any(
            handler.type is not None and "ImportError" in ast.unparse(handler.type) for handler in child.handlers
        )
        yield from private_imports(child, guarded or caught)


def test_the_only_private_import_is_a_probe_of_the_grid_without_a_network() -> None:
    root = Path(coterie.__file__).parent
    found = {
        path.relative_to(root).as_posix(): private
        for path in sorted(root.rglob("*.py"))
        if (private := list(private_imports(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == {"flower/inprocess.py": [("flwr.supercore.task_identity", True)]}


def test_strategies_and_apps_do_not_load_the_grid_without_a_network() -> None:
    code = """
import sys
import coterie.flower.client, coterie.flower.deploy, coterie.flower.local, coterie.flower.server
import coterie.flower.strategies, coterie.flower.app_checks
assert "coterie.flower.inprocess" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_argument_of_a_later_flower_is_refused_by_name() -> None:
    arrays = ArrayRecord()
    with pytest.raises(ConfigError, match="should_stop"):
        CFL().start(None, arrays, should_stop=lambda result: True)  # type: ignore[arg-type]


def test_pauses_are_short_in_flowers_own_code_only(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    warm.shorten_pauses(0.2)
    code = (lambda seconds: time.sleep(seconds)).__code__
    in_flower = FunctionType(code, {"__name__": "flwr.supernode.anywhere", "time": time})
    in_an_app = FunctionType(code, {"__name__": "flwrapp.client_app", "time": time})
    for seconds in (3.0, 0.1):
        in_flower(seconds)
        in_an_app(seconds)
    assert slept == [0.2, 3.0, 0.1, 0.1]
