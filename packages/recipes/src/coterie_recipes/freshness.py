"""Whether a recipe has changed since its stored result: a hash of its code and of all that it uses in this package."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from coterie.methods.published import PAPERS
from coterie_recipes.base import find_recipe

PACKAGE = "coterie_recipes"
MACHINERY = {f"{PACKAGE}.{name}" for name in ("base", "runs", "stored", "command", "freshness")}
"""Modules that keep and show results; recipes call them, and they change no number."""
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


class Definition(NamedTuple):
    """A top-level name of a module: the statement that makes it, and the module's text."""

    statement: ast.stmt
    text: str

    def code(self) -> str:
        """The statement without comments, docstrings and layout."""
        segment = ast.get_source_segment(self.text, self.statement) or ""
        tokens = tokenize.generate_tokens(io.StringIO(segment).readline)
        docstrings = {_docstring_line(node) for node in ast.walk(ast.parse(segment))}
        return "".join(t.string for t in tokens if t.type not in LAYOUT and t.start[0] not in docstrings)


def is_fresh(stored: Mapping[str, Any]) -> bool | None:
    """Whether a stored result was made by its recipe as it is now; None where it does not say by what it was made."""
    return None if stored.get("source") is None else stored["source"] == recipe_source(stored["recipe"])


@cache
def recipe_source(name: str) -> str:
    """A hash of a recipe's function and of every definition of this package, and table of a paper, that it uses."""
    run = find_recipe(name).run
    parts = sorted(f"{module}.{used}: {code}" for module, used, code in _used(run))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


def _used(run: Callable[..., Any]) -> Iterator[tuple[str, str, str]]:
    """Module, name and code of all that a function uses."""
    waiting, seen = [(run.__module__, run.__name__)], set()
    while waiting:
        module, name = waiting.pop()
        if (module, name) in seen or module in MACHINERY:
            continue
        seen.add((module, name))
        defined, imported = _definitions(module)
        if name in imported:
            waiting.append(imported[name])
        elif name in defined:
            yield module, name, defined[name].code()
            waiting += [(module, node.id) for node in ast.walk(defined[name].statement) if isinstance(node, ast.Name)]
            yield from _printed_settings(defined[name].statement)


def _printed_settings(statement: ast.stmt) -> Iterator[tuple[str, str, str]]:
    """The tables of the papers that a statement looks up, as in `PAPERS["flt"].tables`."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "PAPERS":
            key = ast.literal_eval(node.slice)
            yield "papers", key, repr({name: tuple(table) for name, table in PAPERS[key].tables.items()})


@cache
def _definitions(module: str) -> tuple[dict[str, Definition], dict[str, tuple[str, str]]]:
    """The top-level names that a module of this package defines, and those that it imports from others of it."""
    text = Path(import_module(module).__file__ or "").read_text(encoding="utf-8")
    defined: dict[str, Definition] = {}
    imported: dict[str, tuple[str, str]] = {}
    for statement in ast.parse(text).body:
        for name in _names(statement):
            defined[name] = Definition(statement, text)
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(f"{PACKAGE}."):
            imported |= {alias.asname or alias.name: (str(statement.module), alias.name) for alias in statement.names}
    return defined, imported


def _names(statement: ast.stmt) -> list[str]:
    """The names that a statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)]


def _docstring_line(node: ast.AST) -> int | None:
    """The first line of a function's or class's docstring."""
    body = getattr(node, "body", None)
    if not isinstance(node, ast.FunctionDef | ast.ClassDef) or not body or ast.get_docstring(node) is None:
        return None
    return int(body[0].lineno)
