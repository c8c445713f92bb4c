"""What the site generates: the reference has every public name, and every method its options."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest

import coterie
import coterie.data
import coterie.methods
from coterie.methods import method_classes
from coterie.options import FIELDS
from printed_pages import PAGES, ROOT, blocks_of, name_of

pytest.importorskip("mkdocs", reason="needs coterie[docs]")


@pytest.fixture(scope="module")
def hooks() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "site_hooks.py"))


def shown(hooks: dict[str, Any], page: str) -> str:
    """A page's Markdown with what is generated."""
    text: str = hooks["on_page_markdown"]((ROOT / "docs" / page).read_text(), None, None, None)
    return text


@pytest.mark.parametrize("package", [coterie, coterie.methods, coterie.data], ids=lambda package: package.__name__)
def test_the_reference_has_every_public_name_once(hooks: dict[str, Any], package: Any) -> None:
    listed = re.findall(r"^::: (\S+)$", shown(hooks, f"api/{package.__name__.rpartition('.')[2]}.md"), re.MULTILINE)
    ours = [name for name in package.__all__ if getattr(package, name).__module__.startswith("coterie")]
    assert {f"{package.__name__}.{name}" for name in ours} <= set(listed)
    assert len(listed) == len(set(listed))


def test_every_method_has_a_page_with_its_options(hooks: dict[str, Any]) -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs" / "methods").glob("*.md"))
    own = {name for name, cls in method_classes().items() if cls.__module__.startswith(("coterie.", "coterie_field."))}
    with_options = {name for name in own if hooks["options_table"](name) != "None."}
    assert with_options == set(re.findall(r"<!-- options: (\S+) -->", pages))
    assert "| `restarts` | whole number from 1 to 1000 | `1` |" in shown(hooks, "methods/ifca.md")


def test_every_option_of_a_run_is_on_the_page_of_options(hooks: dict[str, Any]) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ", shown(hooks, "guide/options.md"), re.MULTILINE)
    assert rows == list(FIELDS)


def test_equations_are_drawn_by_the_browser_itself(hooks: dict[str, Any]) -> None:
    drawn = hooks["math_fence"]("\\frac{1}{2}\nx_i")
    assert drawn.count("<math") == 2
    assert "<mfrac>" in drawn


def test_every_equation_can_be_drawn(hooks: dict[str, Any]) -> None:
    """A command that the converter does not know would stand on the page as it was typed, with its backslash."""
    equations = [(page, block.text) for page in PAGES for block in blocks_of(page) if block.language == "math"]
    assert equations
    for page, equation in equations:
        assert "\\" not in hooks["math_fence"](equation), f"{name_of(page)}: {equation}"


def test_a_notebook_becomes_a_page_with_its_outputs(hooks: dict[str, Any]) -> None:
    page = hooks["notebook_page"](ROOT / "docs" / "notebooks" / "own-data.ipynb")
    assert page.startswith("# Your own data\n")
    assert "data:image/png;base64," in page
    assert "splits into 5 and 3" in page
