"""The critical-difference diagram as SVG, drawn by hand: methods on a line of mean ranks, bars over those that tie."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from coterie_board.strata import cliques

WIDTH, MARGIN, ROW, BAR = 760, 150, 17, 7
"""Pixels: the picture, the room for names on each side, a name's height, and that of a bar."""
AXIS = 58
INK, LINE = "#7a7b7c", "#4c8bf5"
"""Mid-tones that read on light and on dark pages."""


def rank_diagram(names: Sequence[str], ranks: Sequence[float], width: float, *, ink: str = INK) -> str:
    """The diagram of methods with their mean ranks, both sorted, the best first.

    Args:
        names: the methods.
        ranks: their mean ranks.
        width: the critical difference.
        ink: the colour of text and axis.
    """
    most = len(names)

    def x(rank: float) -> float:
        return MARGIN + (rank - 1) / max(most - 1, 1) * (WIDTH - 2 * MARGIN)

    bars = cliques(ranks, width)
    first = AXIS + 14 + BAR * len(bars)
    half = math.ceil(most / 2)
    height = first + ROW * half + 10
    parts = [_axis(x, most, width, ink)]
    for level, (low, high) in enumerate(bars):
        bar = AXIS + 10 + BAR * level
        parts.append(
            f'<line x1="{x(ranks[low]) - 3:.1f}" y1="{bar}" x2="{x(ranks[high]) + 3:.1f}" y2="{bar}" stroke="{LINE}" '
            'stroke-width="3" stroke-linecap="round"/>'
        )
    for place, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        left = place < half
        y = first + ROW * (place if left else most - 1 - place) + ROW / 2
        end = MARGIN - 8 if left else WIDTH - MARGIN + 8
        parts.append(
            f'<polyline points="{x(rank):.1f},{AXIS} {x(rank):.1f},{y:.1f} {end},{y:.1f}" fill="none" '
            f'stroke="{ink}" stroke-width="0.8"/>'
        )
        words = f"{html.escape(name)} {rank:.1f}" if left else f"{rank:.1f} {html.escape(name)}"
        side = "end" if left else "start"
        parts.append(f'<text x="{end + (-4 if left else 4)}" y="{y + 4:.1f}" text-anchor="{side}">{words}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'style="max-width:100%;height:auto" role="img" font-family="sans-serif" font-size="12" fill="{ink}">\n'
        f"<title>Mean ranks of {most} methods; a bar joins those that do not differ</title>\n{body}\n</svg>\n"
    )


def _axis(x: Callable[[float], float], most: int, width: float, ink: str) -> str:
    parts = [f'<line x1="{x(1):.1f}" y1="{AXIS}" x2="{x(most):.1f}" y2="{AXIS}" stroke="{ink}"/>']
    step = 1 if most <= 12 else 2
    for rank in range(1, most + 1, step):
        parts.append(f'<line x1="{x(rank):.1f}" y1="{AXIS - 5}" x2="{x(rank):.1f}" y2="{AXIS}" stroke="{ink}"/>')
        parts.append(f'<text x="{x(rank):.1f}" y="{AXIS - 9}" text-anchor="middle">{rank}</text>')
    end = x(min(1 + width, most))
    parts.append(f'<line x1="{x(1):.1f}" y1="26" x2="{end:.1f}" y2="26" stroke="{ink}" stroke-width="2"/>')
    parts.append(f'<text x="{(x(1) + end) / 2:.1f}" y="18" text-anchor="middle">critical difference {width:.1f}</text>')
    return "\n".join(parts)
