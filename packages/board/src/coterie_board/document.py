"""A page as a list of blocks, written as Markdown or as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    """A title of a section; the first level is the page's."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph; `code`, **bold** and [links](address) as in Markdown."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class Commands:
    """Lines for a terminal."""

    text: str


@dataclass(frozen=True)
class Table:
    """Titles and rows of text; the first `words` columns are text, the others numbers."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1


@dataclass(frozen=True)
class Figure:
    """A drawing: its SVG for the HTML page, and its file for Markdown."""

    svg: str
    file: str
    alt: str


Block = Heading | Text | Items | Commands | Table | Figure


def to_markdown(blocks: Sequence[Block], mark: str) -> str:
    """The page as Markdown; `mark` says on top, where readers do not see it, what it was made by."""
    return f"<!-- {mark} -->\n\n" + "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Text):
        return _wrapped(block.text)
    if isinstance(block, Items):
        return "\n".join(_wrapped(item, "* ") for item in block.items)
    if isinstance(block, Commands):
        return f"```text\n{block.text}\n```"
    if isinstance(block, Figure):
        return f"![{block.alt}]({block.file})"
    rule = ["---" if place < block.words else "---:" for place in range(len(block.titles))]
    lines = [[cell.replace("|", "\\|") for cell in row] for row in (block.titles, *block.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def _wrapped(text: str, first: str = "") -> str:
    """The text in lines that a reader of the file sees whole."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


WIDTH = 125
"""Characters in a line of a Markdown file."""
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1rem; }
h1 { line-height: 1.2; } h2 { margin-top: 2.2em; } h3 { margin-top: 1.6em; }
.wide { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2em 0.6em; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { vertical-align: bottom; } .word { text-align: left; }
th:first-child, td:first-child { position: sticky; left: 0; background: Canvas; }
tr:hover td { background: var(--soft); }
td.long { white-space: normal; min-width: 14rem; }
code, pre { font-size: 13px; background: var(--soft); border-radius: 3px; }
code { padding: 0.1em 0.3em; } pre { padding: 0.7em; overflow-x: auto; } pre code { background: none; padding: 0; }
svg { display: block; min-width: 34rem; }
"""
LONG = 45
"""Characters from which a cell may be broken into lines."""


def to_html(blocks: Sequence[Block], mark: str) -> str:
    """The page as one HTML file: no script, no address of another host, text escaped."""
    title = next(block.text for block in blocks if isinstance(block, Heading))
    body = "\n".join(map(_html, blocks))
    return (
        f'<!doctype html>\n<!-- {html.escape(mark)} -->\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
    if isinstance(block, Text):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Items):
        return "<ul>\n" + "\n".join(f"<li>{_inline(item)}</li>" for item in block.items) + "\n</ul>"
    if isinstance(block, Commands):
        return f"<pre><code>{html.escape(block.text)}</code></pre>"
    if isinstance(block, Figure):
        return f'<div class="wide">{block.svg}</div>'
    head = _row("th", block.titles, block.words)
    body = "\n".join(_row("td", row, block.words) for row in block.rows)
    return f'<div class="wide"><table>\n<thead>\n{head}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _row(tag: str, cells: Sequence[str], words: int) -> str:
    parts = []
    for place, cell in enumerate(cells):
        kinds = [*(["word"] if place < words else []), *(["long"] if len(cell) > LONG else [])]
        named = f' class="{" ".join(kinds)}"' if kinds else ""
        parts.append(f"<{tag}{named}>{_inline(cell)}</{tag}>")
    return f"<tr>{''.join(parts)}</tr>"


def _inline(text: str) -> str:
    """Markdown's code, bold and links as HTML, those to other pages without the link; all else is escaped."""
    found = html.escape(text)
    found = re.sub(r"`([^`]*)`", r"<code>\1</code>", found)
    found = re.sub(r"\*\*([^*]*)\*\*", r"<strong>\1</strong>", found)
    found = re.sub(r"\[([^\]]*)\]\([^)]*\.md\)", r"\1", found)
    return re.sub(r"\[([^\]]*)\]\(([^)]*)\)", r'<a href="\2">\1</a>', found)
