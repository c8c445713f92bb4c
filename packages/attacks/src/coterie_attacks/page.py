"""The frontier on one page: `python -m coterie_attacks.page ROWS.json PICTURE.png` draws it and prints its tables.

A setting is a federation, a method and a number of hostile clients; what it loses is what the worst attack costs the
mean honest client, against the same rule without attack.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from coterie_attacks.frontier import AttackResult

Rows = Sequence[AttackResult]
Setting = tuple[str, str, str, int]
"""A federation without its level, the level, the method, how many are hostile."""
BARS = {1: 0.05, 3: 0.10}
"""What an attack by so many of 20 may cost the mean honest client."""
FULL = 0.5
"""The loss at which the picture's colours end."""


def read(path: Path) -> list[AttackResult]:
    """The rows of a stored result."""
    known = {field.name for field in fields(AttackResult)}
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [AttackResult(**{name: value for name, value in row.items() if name in known}) for row in rows]


def worst_attacks(rows: Rows) -> dict[Setting, AttackResult]:
    """The attack that costs most, of each setting."""
    found: dict[Setting, AttackResult] = {}
    for row in rows:
        base, _, level = row.scenario.partition("+")
        key = (base, level, row.method, row.hostile)
        if row.attack != "none" and (key not in found or row.lost > found[key].lost):
            found[key] = row
    return found


def grid(
    worst: dict[Setting, AttackResult], value: Callable[[AttackResult], float]
) -> tuple[list[str], list[str], Any]:
    """The names of rows and columns, and the values `(rows, columns)` in points, NaN where there is none."""
    lines = list(dict.fromkeys((base, method, hostile) for base, _, method, hostile in worst))
    levels = list(dict.fromkeys(level for _, level, _, _ in worst))
    values = np.full((len(lines), len(levels)), np.nan)
    for (base, level, method, hostile), row in worst.items():
        values[lines.index((base, method, hostile)), levels.index(level)] = 100 * value(row)
    return [f"{base}, {method}, {hostile}" for base, method, hostile in lines], levels, values


def draw(worst: dict[Setting, AttackResult], path: Path) -> None:
    """What is lost to the worst attack beside what the rule costs without any."""
    figure = Figure(figsize=(11, 0.28 * len(grid(worst, lambda row: row.lost)[0]) + 1.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = {
        "lost to the worst attack": lambda row: row.lost,
        "price without attack, mean": lambda row: row.price,
        "price, client that pays most": lambda row: row.price_worst,
    }
    for place, (title, value) in zip(figure.subplots(1, 3, sharey=True), panels.items(), strict=True):
        names, levels, values = grid(worst, value)
        place.imshow(values, cmap="Reds", vmin=0, vmax=100 * FULL, aspect="auto")
        for (i, j), number in np.ndenumerate(values):
            shade = "white" if number > 70 * FULL else "black"
            place.text(j, i, "" if np.isnan(number) else f"{number:.0f}", ha="center", va="center", color=shade, size=8)
        place.set_xticks(range(len(levels)), [level.removeprefix("dirichlet") for level in levels], size=8)
        place.set_yticks(range(len(names)), names, size=8)
        place.set_title(f"{title}, points", size=9)
    figure.savefig(path, dpi=110)


def missed(rows: Iterable[AttackResult]) -> list[AttackResult]:
    """The cells above their bar, the worst first."""
    return sorted((row for row in rows if row.lost > BARS.get(row.hostile, 1.0)), key=lambda row: -row.lost)


def as_table(names: Sequence[str], levels: Sequence[str], values: Any) -> str:
    """The grid as Markdown."""
    head = ["| federation, method, hostile | " + " | ".join(levels) + " |", "|---|" + "---|" * len(levels)]
    body = [
        f"| {name} | " + " | ".join(f"{v:.1f}" for v in line) + " |" for name, line in zip(names, values, strict=True)
    ]
    return "\n".join([*head, *body])


def main(stored: str, picture: str) -> None:
    """Draw the picture and print the tables."""
    rows = [row for row in read(Path(stored)) if row.rule.startswith("expect_hostile")]
    worst = worst_attacks(rows)
    draw(worst, Path(picture))
    print(as_table(*grid(worst, lambda row: row.lost)))
    for hostile, bar in BARS.items():
        own = [row for row in rows if row.hostile == hostile and row.attack != "none"]
        settings = {key: row for key, row in worst.items() if key[-1] == hostile}
        cells = f"{sum(row.lost <= bar for row in own)} of {len(own)} cells"
        whole = f"{sum(row.lost <= bar for row in settings.values())} of {len(settings)} settings"
        print(f"\n{hostile} hostile: {cells}, {whole} within {bar}")
    for row in missed(rows):
        print(f"| {row.scenario} | {row.method} | {row.hostile} | {row.attack} | {100 * row.lost:.1f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
