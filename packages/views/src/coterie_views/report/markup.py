"""HTML that is safe by construction: whatever is not markup already is text, and text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

VOID = frozenset({"meta", "br"})
LONGEST_NAME = 32
"""Characters of a name that may not be broken into lines."""


class Markup(str):
    """Text that is HTML already: only this module and the drawings make it."""


def element(tag: str, *children: object, **attributes: str) -> Markup:
    """`<tag …>children</tag>`; children that are not markup are escaped. `class_` stands for the attribute class."""
    spelled = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(text)}"' for name, text in attributes.items()
    )
    if tag in VOID:
        return Markup(f"<{tag}{spelled}>")
    return Markup(f"<{tag}{spelled}>{joined(children)}</{tag}>")


def joined(children: Iterable[object]) -> Markup:
    """Children one after another."""
    return Markup("".join(child if isinstance(child, Markup) else html.escape(str(child)) for child in children))


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], *, words: int = 1) -> Markup:
    """A table in a box of its own that scrolls when the page is narrow; the first `words` columns are text."""
    kinds = ["word" if i < words else "number" for i in range(len(titles))]
    head = element("tr", *(element("th", title, class_=kind) for title, kind in zip(titles, kinds, strict=True)))
    body = [
        element(
            "tr",
            *(
                element("td", named(cell) if kind == "word" else cell, class_=kind)
                for cell, kind in zip(row, kinds, strict=True)
            ),
        )
        for row in rows
    ]
    return element("div", element("table", element("thead", head), element("tbody", *body)), class_="scroll")


def named(cell: object) -> object:
    """A name that is not too long as markup that stays on one line; anything else as it is."""
    if isinstance(cell, str) and not isinstance(cell, Markup) and " " not in cell and 0 < len(cell) <= LONGEST_NAME:
        return element("span", cell, class_="id")
    return cell


def section(title: str, *content: object) -> Markup:
    """A part of the page under a heading."""
    return element("section", element("h2", title), *content)


def page(title: str, style: str, *content: object) -> str:
    """A whole document that needs nothing but itself."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        # The page must not ask anybody for anything, whatever the data in it says.
        element(
            "meta",
            http_equiv="Content-Security-Policy",
            content="default-src 'none'; style-src 'unsafe-inline'; img-src data:",
        ),
        element("title", title),
        Markup(f"<style>{style}</style>"),
    )
    return f"<!doctype html>\n{element('html', head, element('body', element('main', *content)), lang='en')}\n"
