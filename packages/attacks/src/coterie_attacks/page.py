"""The frontier on one page: `python -m coterie_attacks.page ROWS.json PICTURE.png` draws it and prints its tables.

A setting is a federation, a method and a number of hostile clients; what it loses is what the worst attack costs the
mean honest client, against the same rule without attack.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean
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
CONTROLS = ("none", "absent")
"""What is no attack."""
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
        if row.attack not in CONTROLS and (key not in found or row.lost > found[key].lost):
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
            place.text(
                j,
                i,
                "" if np.isnan(number) else f"{np.round(number) + 0:.0f}",
                ha="center",
                va="center",
                color=shade,
                size=8,
            )
        place.set_xticks(range(len(levels)), [level.removeprefix("dirichlet").strip("()") for level in levels], size=8)
        place.set_yticks(range(len(names)), names, size=8)
        place.set_title(f"{title}, points", size=9)
    figure.supxlabel("labels by Dirichlet(…)", size=9)
    figure.savefig(path, dpi=110)


def missed(rows: Rows) -> dict[tuple[str, str], str]:
    """The cells above their bar, by setting and level: the attacks, with what they cost."""
    found: dict[tuple[str, str], list[AttackResult]] = {}
    for row in rows:
        if row.attack not in CONTROLS and row.lost > BARS.get(row.hostile, 1.0):
            base = row.scenario.partition("+")[0]
            found.setdefault((f"{base}, {row.method}, {row.hostile}", _level(row)), []).append(row)
    return {
        key: ", ".join(f"{row.attack} {100 * row.lost:.0f}" for row in sorted(own, key=lambda row: -row.lost))
        for key, own in found.items()
    }


def as_table(head: str, cells: dict[tuple[str, str], str], columns: Sequence[str]) -> str:
    """Texts by line and column as Markdown."""
    lines = list(dict.fromkeys(line for line, _ in cells))
    rows = [[line, *(cells.get((line, column), "") for column in columns)] for line in lines]
    table = [[head, *columns], ["---"] * (len(columns) + 1), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)


def prices(rows: Rows) -> dict[tuple[str, str], str]:
    """What each rule costs without attack: the mean over federations and methods, of the mean and the worst client."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row.attack == "none":
            found.setdefault((row.rule, _level(row)), []).append((row.price, row.price_worst))
    return {
        key: " / ".join(f"{100 * fmean(own):.1f}" for own in zip(*each, strict=True)) for key, each in found.items()
    }


def under_attack(rows: Rows) -> dict[tuple[str, str], str]:
    """What each rule leaves the mean honest client: without attack, on average over the attacks, under the worst."""
    found: dict[tuple[str, str], list[AttackResult]] = {}
    for row in rows:
        if row.attack not in CONTROLS:
            found.setdefault((row.rule, row.scenario), []).append(row)
    return {key: _left(own) for key, own in found.items()}


def _left(rows: Rows) -> str:
    left = [100 * row.accuracy for row in rows]
    worst = min(rows, key=lambda row: row.accuracy)
    quiet = 100 * (worst.accuracy + worst.lost)
    return f"{quiet:.0f} / {fmean(left):.0f} / {min(left):.0f} {worst.attack}"


def _level(row: AttackResult) -> str:
    return row.scenario.partition("+")[2]


def main(stored: str, picture: str) -> None:
    """Draw the picture and print the tables."""
    found = read(Path(stored))
    levels = list(dict.fromkeys(map(_level, found)))
    print(as_table("rule", prices(found), levels) + "\n")
    compared = [row for row in found if row.hostile == max(BARS) and not row.rule.startswith("expect_hostile")]
    print(as_table("rule", under_attack(compared), list(dict.fromkeys(row.scenario for row in compared))) + "\n")
    rows = [row for row in found if row.rule.startswith("expect_hostile")]
    worst = worst_attacks(rows)
    draw(worst, Path(picture))
    for hostile, bar in BARS.items():
        own = [row for row in rows if row.hostile == hostile and row.attack not in CONTROLS]
        settings = [row for key, row in worst.items() if key[-1] == hostile]
        cells = f"{sum(row.lost <= bar for row in own)} of {len(own)} cells"
        print(f"{hostile} hostile: {cells}, {sum(row.lost <= bar for row in settings)} of {len(settings)} settings")
    print("\n" + as_table("federation, method, hostile", missed(rows), levels))


if __name__ == "__main__":
    main(*sys.argv[1:])
