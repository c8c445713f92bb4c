"""What the documentation site makes of its pages beyond Markdown, called by mkdocs (see `hooks` in mkdocs.yml).

* a fence ```math holds LaTeX and becomes MathML, which browsers draw themselves;
* `<!-- options: cfl -->` becomes the table of a method's options, and `<!-- options: training -->` of a group of a
  run's options, read from their classes;
* `<!-- names: coterie.run coterie.resume -->` becomes the reference of these names, and `<!-- names: coterie -->` that
  of all public names of the package that the page has not listed before;
* every notebook becomes a page with the outputs that are stored in it;
* links to notebooks lead to these pages, and links to files of the repository outside docs/ become plain text.
"""

from __future__ import annotations

import base64
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from coterie.option_types import Option, describe_options

OPTIONS = re.compile(r"^<!-- options: (\S+) -->$", re.MULTILINE)
NAMES = re.compile(r"^<!-- names: (.+) -->$", re.MULTILINE)
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:packages|examples|src|tests|scripts)/[^)]*\)")
NOTEBOOK = re.compile(r"(?<=\])\(((?:\.\./)?notebooks/[\w-]+)\.ipynb\)")
LONGEST_OUTPUT = 4000
"""Characters of a cell's text that are shown."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give superfences the fence for equations."""
    fence = {"name": "math", "class": "math", "format": math_fence}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [fence]
    return config


def math_fence(source: str, *_: Any, **__: Any) -> str:
    """An equation per line of LaTeX, as MathML."""
    lines = [line for line in source.strip().splitlines() if line.strip()]
    return '<div class="math">' + "".join(convert(line, display="block") for line in lines) + "</div>"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page per notebook."""
    for notebook in sorted(Path(config.docs_dir).glob("notebooks/*.ipynb")):
        name = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, name, content=notebook_page(notebook)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put in what is generated."""
    markdown = NOTEBOOK.sub(r"(\1.md)", OUTSIDE.sub(r"\1", markdown))
    markdown = OPTIONS.sub(lambda match: options_table(match[1]), markdown)
    shown: set[str] = set()

    def reference(match: re.Match[str]) -> str:
        names = [name for given in match[1].split() for name in public_names(given) if name not in shown]
        shown.update(names)
        return "\n\n".join(f"::: {name}" for name in names)

    return NAMES.sub(reference, markdown)


def public_names(name: str) -> list[str]:
    """The public names of our own in a package, or the name itself if it is not a package."""
    try:
        package = import_module(name)
    except ModuleNotFoundError:
        return [name]
    found = [(public, getattr(package, public)) for public in sorted(package.__all__, key=str.lower)]
    return [f"{name}.{public}" for public, thing in found if getattr(thing, "__module__", name).startswith("coterie")]


def options_table(name: str) -> str:
    """The options of a method or a group with their types, defaults and the sentences that stand under the fields."""
    rows = [
        f"| `{option.name}` | {cell(option.type)} | `{option.default}` | {cell(option.text)} |"
        for option in options_of(name)
    ]
    return "\n".join(["| option | type | default | what it does |", "|---|---|---|---|", *rows] if rows else ["None."])


def options_of(name: str) -> list[Option]:
    """The options of a group of a run's options, or of a method."""
    from coterie.methods import method_classes
    from coterie.options import FIELDS, GROUP_OF, GROUPS, option_default, option_text
    from coterie.runs.config import option_type

    if name not in GROUPS and name != "basic":
        return describe_options(method_classes()[name])
    keys = [key for key in FIELDS if GROUP_OF.get(key, "basic") == name]
    return [Option(key, option_type(key), option_default(key), option_text(key)) for key in keys]


def cell(text: str) -> str:
    """A text that fits in a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def notebook_page(path: Path) -> str:
    """A notebook as Markdown."""
    cells = nbformat.read(path, as_version=4).cells
    parts = [part for each in cells for part in (source_of(each), *map(output_of, each.get("outputs", ())))]
    note = f"This page is the notebook [{path.name}]({path.name}), as it was last run."
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, note, rest.strip(), *parts[1:]]) + "\n"


def source_of(each: Any) -> str:
    """A cell's own text."""
    source = str(each.source).rstrip()
    return source if each.cell_type == "markdown" else f"```python\n{source}\n```"


def output_of(output: Any) -> str:
    """An output of a cell: a picture, a table in HTML, or text."""
    if output.output_type == "stream":
        return plain(output.text)
    data = output.get("data", {})
    if "image/png" in data:
        picture = base64.b64encode(base64.b64decode(data["image/png"])).decode()
        return f'<img alt="The figure that this cell draws" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        return f'<div class="output">{" ".join(data["text/html"].split())}</div>'
    return plain(data.get("text/plain", ""))


def plain(text: str) -> str:
    """Text that a cell printed."""
    shown = text if len(text) <= LONGEST_OUTPUT else f"{text[:LONGEST_OUTPUT]}\n…"
    return f"```{{ .text .output }}\n{shown.rstrip()}\n```"
