"""A comparison as a table: the same cells for the terminal, Markdown, CSV and the report."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

NOTE = "± is the standard deviation over seeds (population)."


def columns(table: Mapping[str, Any]) -> list[str]:
    """The titles; loss stands in for accuracy where targets are real numbers."""
    rated = any(row["accuracy"] is not None for row in table["rows"])
    quality = ["accuracy %", "worst 10 %", "variance"] if rated else ["loss"]
    return ["method", *quality, "clusters", "ARI", "MB", "seconds", "rounds to 90 % of best"]


def cells(table: Mapping[str, Any]) -> list[list[str]]:
    """One row of text per method, under `columns`; a method without a finished run says why in `problems`."""
    titles = columns(table)
    return [[_cell(title, row) for title in titles] for row in table["rows"]]


def problems(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Methods that failed or are not finished, and why; one line per method."""
    found = []
    for row in table["rows"]:
        reasons = dict.fromkeys(row["failures"].values())
        missing = len(row["folders"]) - len(row["finished"]) - len(row["failures"])
        if reasons:
            seeds = ", ".join(row["failures"])
            found.append((row["method"], f"failed with seed {seeds}: {'; '.join(reasons)}"))
        if missing:
            found.append((row["method"], f"{missing} of {len(row['folders'])} runs are not finished"))
    return found


def _cell(title: str, row: Mapping[str, Any]) -> str:
    if title == "method":
        return str(row["method"])
    if not row["finished"]:
        return "failed" if row["failures"] and title in {"accuracy %", "loss"} else "-"
    if title.startswith("rounds"):
        return rounds_text(row["rounds_to_target"])
    name, scale, form = {
        "accuracy %": ("accuracy", 100.0, ".2f"),
        "worst 10 %": ("worst10", 100.0, ".2f"),
        "variance": ("variance", 1.0, ".5f"),
        "loss": ("loss", 1.0, ".4g"),
        "clusters": ("clusters", 1.0, ".3g"),
        "ARI": ("ari", 1.0, ".3f"),
        "MB": ("bytes", 1e-6, ".1f"),
        "seconds": ("seconds", 1.0, ".1f"),
    }[title]
    value = row[name]
    if value is None:
        return "-"
    text = format(scale * value["mean"], form)
    spread = title in {"accuracy %", "loss"} and len(value["values"]) > 1
    return f"{text} ± {format(scale * value['std'], form)}" if spread else text


def rounds_text(reached: Sequence[int | None]) -> str:
    """Rounds to the target: their mean, and with how many seeds it was reached if not with all."""
    known = [value for value in reached if value is not None]
    if not known:
        return "never"
    text = format(sum(known) / len(known), ".3g")
    return text if len(known) == len(reached) else f"{text} ({len(known)} of {len(reached)} seeds)"


def markdown(table: Mapping[str, Any]) -> str:
    """The comparison as a Markdown table with a line on what the numbers are."""
    titles = columns(table)
    lines = ["| " + " | ".join(titles) + " |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells(table)]
    lines += ["", caption(table)]
    lines += ["", *(f"* {method}: {text}" for method, text in problems(table))] if problems(table) else []
    return "\n".join(lines) + "\n"


def caption(table: Mapping[str, Any]) -> str:
    """What the numbers of the table are."""
    seeds = table["seeds"]
    text = f"Means over {len(seeds)} seeds ({', '.join(map(str, seeds))}). {NOTE}" if len(seeds) > 1 else "One seed."
    if table["target"] is not None:
        text += f" 90 % of the best is an accuracy of {100 * table['target']:.2f} %."
    return text


def as_csv(table: Mapping[str, Any]) -> str:
    """The comparison as CSV with plain numbers: mean and standard deviation of every measure."""
    names = ("accuracy", "worst10", "variance", "loss", "clusters", "ari", "bytes", "seconds")
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    titles = [f"{name}_{kind}" for name in names for kind in ("mean", "std")]
    writer.writerow(["method", "seeds", *titles, "rounds_to_target", "seeds_at_target", "problem"])
    why: dict[str, str] = {}
    for method, text in problems(table):
        why[method] = f"{why[method]}; {text}" if method in why else text
    for row in table["rows"]:
        known = [value for value in row["rounds_to_target"] if value is not None]
        numbers = [None if row[name] is None else row[name][kind] for name in names for kind in ("mean", "std")]
        mean_rounds = sum(known) / len(known) if known else None
        writer.writerow(
            [row["method"], len(row["finished"]), *numbers, mean_rounds, len(known), why.get(row["method"], "")]
        )
    return lines.getvalue()
