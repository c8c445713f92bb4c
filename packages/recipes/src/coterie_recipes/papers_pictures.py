"""A picture for every figure of the papers that was run: our rows drawn, a panel for each measure."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

from coterie_recipes.stored import standard_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUMBERED = re.compile(r"(.*?)[ =]?(-?\d+(?:\.\d+)?)$")
"""A part of a setting that ends in a number: `R=0.5`, `round 10`, `C2`."""
PANELS = 3
"""In a row of a picture."""


class Place(NamedTuple):
    """Where a row is drawn: on which line, and at which value of what."""

    line: str
    axis: str
    value: float


def place_of(setting: str) -> Place | None:
    """The place of a row whose setting ends in a number; None where it has none.

    Example:
        >>> place_of("σ=0.1, R=0.5")
        Place(line='σ=0.1', axis='R', value=0.5)
        >>> place_of("federated XOR")
    """
    *before, last = setting.split(", ")
    found = NUMBERED.match(last)
    return None if found is None else Place(", ".join(before), found[1], float(found[2]))


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Of every measure with several rows: lines where all settings end in the same quantity, else a bar for each."""
    number = Counter(row["measure"] for row in rows)
    measures = [measure for measure, rows_of_it in number.items() if rows_of_it > 1] or list(number)
    wide = min(PANELS, len(measures))
    high = -(-len(measures) // wide)
    figure = Figure(figsize=(4.2 * wide, 3.2 * high), layout="constrained")
    panels = list(figure.subplots(high, wide, squeeze=False).flat)
    for axes, measure in zip(panels[: len(measures)], measures, strict=True):
        own = [row for row in rows if row["measure"] == measure]
        places = [place_of(row["setting"]) for row in own]
        known = [place for place in places if place is not None]
        if len(known) == len(own) > 1 and len({place.axis for place in known}) == 1:
            _lines(axes, own, known)
        else:
            _bars(axes, own)
        axes.set_title(measure, fontsize=9)
    for axes in panels[len(measures) :]:
        axes.set_visible(False)
    return figure


def _lines(axes: Axes, rows: Sequence[Mapping[str, Any]], places: Sequence[Place]) -> None:
    for line in dict.fromkeys(place.line for place in places):
        points = sorted((place.value, row) for place, row in zip(places, rows, strict=True) if place.line == line)
        values = [value for value, _ in points]
        means = [statistics.fmean(row["values"]) for _, row in points]
        errors = [standard_error(row["values"]) or 0 for _, row in points]
        axes.errorbar(values, means, errors, marker="o", markersize=3, label=line or None)
    axes.set_xlabel(places[0].axis)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7)


def _bars(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    names = [row["setting"] for row in rows]
    means = [statistics.fmean(row["values"]) for row in rows]
    errors = [standard_error(row["values"]) or 0 for row in rows]
    axes.barh(names, means, xerr=errors, color="tab:blue", height=0.6)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw rows into an SVG file, the same bytes for the same rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "coterie", "svg.fonttype": "none"}):
        draw(rows).savefig(path, format="svg", metadata={"Date": None})
