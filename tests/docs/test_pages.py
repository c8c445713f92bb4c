"""Every snippet of README and the manual runs as printed; commands that are only shown have options that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from coterie.methods import base
from coterie.tasks.base import Task
from printed_pages import PAGES, ROOT, Block, Reader, blocks_of, name_of, parse_command, shown_commands

NOT_RUN = {
    ("docs/methods/flt.md", "import coterie"): "runs in tests/methods/test_flt.py, where UMAP is compiled already",
}
"""Blocks marked python or bash that are not run here: page and first line of the block, and why."""

GIVEN = {"README.md": "readers_own"}
"""What a reader of the page has already (data, a network, an app), as the names of a module beside this one."""

KNOWN_LANGUAGES = {"python", "bash", "text", "toml", "json", "math", "layers", "packages"}
"""The first two are run."""

RUNNING = [page for page in PAGES if any(block.language in ("python", "bash") for block in blocks_of(page))]
SHOWING = [page for page in PAGES if any(shown_commands(page))]


def key_of(page: Path, block: Block) -> tuple[str, str]:
    """How NOT_RUN names a block."""
    return name_of(page), block.text.strip().partition("\n")[0]


@pytest.fixture
def known() -> Iterator[None]:
    """Afterwards nobody knows the methods and tasks that a page defines."""
    methods, kinds = dict(base._METHODS), dict(Task.kinds)
    yield
    for registry, before in ((base._METHODS, methods), (Task.kinds, kinds)):
        registry.clear()
        registry.update(before)  # type: ignore[arg-type]


@pytest.mark.parametrize("page", RUNNING, ids=name_of)
def test_snippets_run_as_printed(
    page: Path, known: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    reader = Reader(page)
    try:
        if name_of(page) in GIVEN:
            pytest.importorskip("flwr", reason="needs coterie[flower]")
            reader.module.__dict__.update(vars(import_module(GIVEN[name_of(page)])))
        for block in blocks_of(page):
            if block.language in ("python", "bash") and key_of(page, block) not in NOT_RUN:
                try:
                    reader.run(block)
                except SystemExit as end:
                    pytest.fail(f"{name_of(page)}:{block.line} ends with {end.code}: {capfd.readouterr().err}")
    finally:
        reader.close()


def test_what_is_not_run_is_still_printed() -> None:
    printed = {key_of(page, block) for page in PAGES for block in blocks_of(page)}
    assert set(NOT_RUN) <= printed
    assert set(GIVEN) <= {name_of(page) for page in RUNNING}


@pytest.mark.parametrize("page", SHOWING, ids=name_of)
def test_commands_that_are_shown_can_be_given(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in shown_commands(page):
        try:
            parse_command(command.replace("…", ""))
        except click.exceptions.Exit:
            pass
        except click.ClickException as problem:
            pytest.fail(f"{name_of(page)}: {command}: {problem.format_message()}")


def test_a_wrong_option_would_be_found() -> None:
    with pytest.raises(click.NoSuchOption):
        parse_command("coterie run --ruonds 5")
    with pytest.raises(click.UsageError):
        parse_command("coterie rnu")


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=name_of)
def test_links_outside_the_site_lead_somewhere(page: Path) -> None:
    """mkdocs checks the links of the pages in docs/; these are not on the site."""
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not re.match(r"https?:|mailto:", target):
            assert (page.parent / target).exists(), target


def test_every_language_of_a_block_is_a_known_one() -> None:
    """A block without a language, or with a misspelt one, would never be run."""
    languages = {(name_of(page), block.language) for page in PAGES for block in blocks_of(page)}
    wrong = {(page, found) for page, found in languages if found not in KNOWN_LANGUAGES}
    assert not wrong, f"mark these blocks python or bash (run), or text (shown): {sorted(wrong)}"
