"""The pages of the manual as a reader would try them: blocks in order, in one empty folder and one module per page."""

from __future__ import annotations

import glob
import linecache
import re
import runpy
import shlex
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}.*\n)(?:^(?: {4}.*)?\n)*", re.MULTILINE)


class Block(NamedTuple):
    """A block of a page: its language (empty where it has none), its text, and the line it begins in."""

    language: str
    text: str
    line: int


def name_of(page: Path) -> str:
    """A page's name in messages: its path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page in their order."""
    text = page.read_text()
    return [Block(m[2], m[3], text[: m.start(3)].count("\n") + 1) for m in FENCE.finditer(text)]


def shown_commands(page: Path) -> Iterator[str]:
    """The commands that a page shows without running them: lines in blocks of other kinds that begin with `coterie`.

    Two spaces or more end a command: what follows explains it. A line that ends in a backslash goes on in the next.
    """
    text = page.read_text()
    others = [block.text for block in blocks_of(page) if block.language not in ("python", "bash")]
    for block in [*others, *INDENTED.findall(FENCE.sub("", text))]:
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            command = re.split(r"\s{2,}", line.strip())[0]
            if command.startswith("coterie ") and "|" not in command:
                yield command


def command_lines(text: str) -> list[list[str]]:
    """The commands of a bash block as lists of words, without comments; names with a star are those of files."""
    found = []
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if words := shlex.split(line, comments=True):
            starred = [sorted(glob.glob(w)) if "*" in w and f"'{w}'" not in line else [] for w in words]
            found.append([each for w, files in zip(words, starred, strict=True) for each in (files or [w])])
    return found


class Reader:
    """Tries one page: Python goes into one module, commands run in this process."""

    def __init__(self, page: Path) -> None:
        self.page = page
        self.module = types.ModuleType(f"page_{page.stem.replace('-', '_').lower()}")
        sys.modules[self.module.__name__] = self.module  # where dataclasses and pydantic look names up

    def close(self) -> None:
        """Forget the page's module."""
        sys.modules.pop(self.module.__name__, None)

    def run(self, block: Block) -> None:
        """Run a block as printed."""
        if block.language == "python":
            self.run_python(block.text, f"{name_of(self.page)}:{block.line}")
        else:
            for words in command_lines(block.text):
                self.run_command(words)

    def run_python(self, code: str, where: str) -> None:
        """Run code in the page's module; its lines are known to tracebacks and to `inspect`."""
        linecache.cache[where] = (len(code), None, code.splitlines(keepends=True), where)
        exec(compile(code, where, "exec"), self.module.__dict__)

    def run_command(self, words: list[str]) -> None:
        """Run a command, which must succeed."""
        programs: dict[str, Callable[[list[str]], None]] = {"coterie": run_coterie, "python": run_script}
        if words[0] not in programs:
            raise AssertionError(f"{name_of(self.page)}: no way to run {words[0]!r} here; a ```text block is not run")
        programs[words[0]](words[1:])


def run_coterie(words: list[str]) -> None:
    """The command `coterie` in this process; it ends with SystemExit where it fails."""
    from coterie.cli import main

    main(words)


def run_script(words: list[str]) -> None:
    """`python FILE` in this process."""
    runpy.run_path(words[0], run_name="__main__")


def parse_command(command: str) -> None:
    """Read a command's options and arguments without running it; raises click.ClickException where they are wrong."""
    from coterie.cli.main import app

    words = shlex.split(command, comments=True)[1:]
    context: click.Context = app.make_context("coterie", list(words))
    rest = [*context._protected_args, *context.args]
    if rest:
        name, found, arguments = app.resolve_command(context, rest)
        assert found is not None
        found.make_context(name, arguments, parent=context)
