"""Figures that look right on light and dark pages: no background, mid-tone colours, text in the page's own colour."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

INK = "#7a7b7c"
"""The colour of text and axes. In inline SVG it becomes the page's text colour; in files it reads on any ground."""
COLOURS = ("#4c8bf5", "#e0803a", "#2fa36b", "#c65bb2", "#b0942a", "#46a3b3", "#d65f5f", "#8a7fd3", "#8c8c8c", "#a0765b")
WIDTH, HEIGHT = 5.5, 3.4
"""Inches; so narrow that text stays readable on a phone."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.6,
}

Draw = Callable[[Any], None]
"""Draws on a matplotlib figure."""


def colour(i: int) -> str:
    """The colour of the cluster or method with that number."""
    return COLOURS[i % len(COLOURS)]


def over_rounds(axes: Any, **settings: Any) -> None:
    """Name the axes of a picture over rounds, which are whole numbers."""
    axes.set(xlabel="round", **settings)
    axes.xaxis.get_major_locator().set_params(integer=True)


def inline_svg(name: str, draw: Draw, *, height: float = HEIGHT) -> str:
    """A figure as an SVG element for an HTML page: no addresses in it, its ids its own, text in the page's colour."""
    text = _drawn(draw, height, "svg", name).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    # In text, matplotlib writes < and > as entities, so whatever stands between the two is a tag of its own making.
    return re.sub(r"<[^>]*>", lambda tag: _own(tag.group(), name), text).strip()


def _own(tag: str, name: str) -> str:
    tag = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", tag).replace("xlink:href=", "href=")
    tag = re.sub(r'\bid="', f'id="{name}-', tag)
    tag = re.sub(r'href="#', f'href="#{name}-', tag)
    tag = tag.replace("url(#", f"url(#{name}-").replace(INK, "currentColor")
    return tag.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1) if tag.startswith("<svg") else tag


def save_figure(folder: Path, name: str, draw: Draw, *, height: float = HEIGHT) -> list[Path]:
    """Write a figure as PNG and SVG; returns the files."""
    files = []
    for ending in ("png", "svg"):
        path = folder / f"{name}.{ending}"
        path.write_bytes(_drawn(draw, height, ending, name))
        files.append(path)
    return files


def pdf_of(drawings: Sequence[tuple[Draw, float]]) -> bytes:
    """Figures for print, one per page: drawings with their heights in inches, black on white, text as text."""
    import matplotlib
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    target = io.BytesIO()
    black = {key: "black" for key, value in STYLE.items() if value == INK}
    with (
        matplotlib.rc_context({**STYLE, **black, "pdf.fonttype": 42}),
        PdfPages(target, metadata={"CreationDate": None}) as pages,
    ):
        for draw, height in drawings:
            figure = Figure(figsize=(WIDTH, height), layout="constrained")
            draw(figure)
            pages.savefig(figure)
    return target.getvalue()


def _drawn(draw: Draw, height: float, form: str, salt: str) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    target = io.BytesIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure)
        dateless: dict[str, Any] = {"metadata": {"Date": None}} if form == "svg" else {}
        figure.savefig(target, format=form, dpi=150, transparent=True, **dateless)
    return target.getvalue()
