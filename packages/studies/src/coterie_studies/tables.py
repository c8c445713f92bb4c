"""A comparison as tables: the same cells for the terminal, Markdown, CSV, LaTeX and the report."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from coterie_studies.budgets import budgets_in_words
from coterie_views.verdict import LOSS

NONE = "–"
MINUS = "−"
RATE = "accuracy %"
WORST = "worst 10 %"


def columns(table: Mapping[str, Any]) -> list[str]:
    """The titles; loss stands in for accuracy where targets are real numbers, further metrics have a column each."""
    rows = table["rows"]
    quality = [RATE, WORST, "variance"] if any(row["accuracy"] is not None for row in rows) else ["loss", WORST]
    others = dict.fromkeys(name for row in rows for name in row.get("metrics", {}))
    seeds = ["seeds"] if len({len(row["finished"]) for row in rows}) > 1 else []
    speed = ["exchanges to 90 % of best"] if table.get("target") is not None else []
    passes = ["passes"] if any(row.get("passes") is not None for row in rows) else []
    return ["method", *seeds, *quality, *others, "clusters", "ARI", "MB", *passes, "seconds", *speed]


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
    if title == "seeds":
        return str(len(row["finished"]))
    if not row["finished"]:
        return "failed" if row["failures"] and title in {RATE, "loss"} else NONE
    if title.startswith("exchanges"):
        return exchanges_text(row["exchanges_to_target"])
    own = row.get("metrics", {})
    name, scale, form = {
        RATE: ("accuracy", 100.0, ".2f"),
        WORST: ("worst10", 100.0, ".2f") if row["accuracy"] is not None else ("worst10", 1.0, ".4g"),
        "variance": ("variance", 1.0, ".5f"),
        "loss": ("loss", 1.0, ".4g"),
        "clusters": ("clusters", 1.0, ".3g"),
        "ARI": ("ari", 1.0, ".3f"),
        "MB": ("bytes", 1e-6, ".1f"),
        "passes": ("passes", 1.0, ".4g"),
        "seconds": ("seconds", 1.0, ".1f"),
    }.get(title, (title, 1.0, ".4g"))
    value = own.get(title) if title in own else row.get(name)
    if value is None:
        return NONE
    text = format(scale * value["mean"], form)
    error = value["sem"] if title in {RATE, "loss"} or title in own else None
    return text if error is None else f"{text} ± {format(scale * error, form if form != '.4g' else '.2g')}"


def exchanges_text(reached: Sequence[int | None]) -> str:
    """Exchanges to the target: their mean, and with how many seeds it was reached if not with all."""
    known = [value for value in reached if value is not None]
    if not known:
        return "never"
    text = format(sum(known) / len(known), ".3g")
    return text if len(known) == len(reached) else f"{text} ({len(known)} of {len(reached)} seeds)"


def caption(table: Mapping[str, Any]) -> str:
    """What the numbers of the table are."""
    seeds = table["seeds"]
    text = "One seed."
    if len(seeds) > 1:
        text = f"Means over {len(seeds)} seeds ({', '.join(map(str, seeds))}) ± standard error."
    if any(row["ari"] is not None for row in table["rows"]):
        text += " ARI: adjusted Rand index of the clusters against the hidden groups, 1 where they are the same."
    else:
        text += f" ARI: adjusted Rand index; {NONE}, as there are no groups to compare with."
    if table["target"] is not None:
        text += f" 90 % of the best is an accuracy of {100 * table['target']:.2f} %."
    if budgets := budgets_in_words(table.get("spent", {})):
        text += f" {budgets}"
    return text


def difference_columns(table: Mapping[str, Any]) -> list[str]:
    """The titles of the paired differences; none where there are none."""
    found = table.get("differences") or []
    if not found:
        return []
    metric = "accuracy, points over" if found[0]["metric"] == "accuracy" else "loss against"
    return ["method", f"{metric} {found[0]['baseline']}", "95 % interval", "p", "p, Holm"]


def difference_cells(table: Mapping[str, Any]) -> list[list[str]]:
    """One row of text per method that is measured against the baseline."""
    return [
        [one["method"], _signed(one, "mean"), _interval(one), _p_text(one["p"]), _p_text(one["p_holm"])]
        for one in table.get("differences") or []
    ]


def _signed(one: Mapping[str, Any], key: str) -> str:
    if one["metric"] != "accuracy":
        return LOSS.change(one[key])
    return f"{100 * one[key]:+.2f}".replace("-", MINUS)


def _interval(one: Mapping[str, Any]) -> str:
    return NONE if one["low"] is None else f"{_signed(one, 'low')} to {_signed(one, 'high')}"


def _p_text(p: float | None) -> str:
    return NONE if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def difference_caption(table: Mapping[str, Any]) -> str:
    """How the differences were made and tested."""
    found = table.get("differences") or []
    if not found:
        return ""
    name = {"t": "paired t test", "wilcoxon": "Wilcoxon signed-rank test"}[table["test"]]
    text = "Differences are paired by seed and client. "
    if found[0]["metric"] == "loss":
        text += "Losses are compared by their ratio. "
    if all(one["over"] == "seeds" for one in found):
        text += f"Test: {name} over the seeds, two-sided."
    else:
        text += (
            "With one seed the test is Student's t over its clients, two-sided, with Nadeau and Bengio's correction "
            "for the training that they share; several seeds find smaller differences."
        )
    text += " The interval is Student's t."
    if len(found) > 1:
        text += f" Holm: p corrected for {len(found)} comparisons."
    if not table["baseline"]["named"]:
        best = table["baseline"]["method"]
        text += f" {best} is the best of these very runs, which flatters it: name a --baseline for a fair test."
    return text


def markdown(table: Mapping[str, Any]) -> str:
    """The comparison as Markdown tables with a line on what the numbers are."""
    lines = [*_markdown_table(columns(table), cells(table)), "", caption(table)]
    lines += ["", *(f"* {method}: {text}" for method, text in problems(table))] if problems(table) else []
    if titles := difference_columns(table):
        lines += ["", *_markdown_table(titles, difference_cells(table)), "", difference_caption(table)]
    return "\n".join(lines) + "\n"


def _markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(titles) + " |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def plain(table: Mapping[str, Any]) -> str:
    """The comparison as text with aligned columns."""
    blocks = [_aligned(columns(table), cells(table)), caption(table)]
    blocks += [f"{method}: {text}" for method, text in problems(table)]
    if titles := difference_columns(table):
        blocks += ["", _aligned(titles, difference_cells(table)), difference_caption(table)]
    return "\n".join(blocks)


def _aligned(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    everything = [list(titles), *map(list, rows)]
    widths = [max(len(row[i]) for row in everything) for i in range(len(titles))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in everything
    )


MEASURES = ("accuracy", "worst10", "variance", "loss", "clusters", "ari", "bytes", "passes", "seconds")


def as_csv(table: Mapping[str, Any]) -> str:
    """The comparison as CSV with plain numbers: of every measure the mean, the sample deviation and standard error.

    Then the paired difference against the baseline, with its interval and p-values.
    """
    others = list(dict.fromkeys(name for row in table["rows"] for name in row.get("metrics", {})))
    titles = [f"{name}_{kind}" for name in (*MEASURES, *others) for kind in OVER_SEEDS]
    against = [f"difference_{kind}" for kind in OF_A_DIFFERENCE]
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(
        ["method", "seeds", *titles, "exchanges_to_target", "seeds_at_target", "problem", "baseline", *against]
    )
    why: dict[str, list[str]] = {}
    for method, text in problems(table):
        why.setdefault(method, []).append(text)
    differences = {one["method"]: one for one in table.get("differences") or []}
    for row in table["rows"]:
        method, known = row["method"], [value for value in row["exchanges_to_target"] if value is not None]
        mean_exchanges = sum(known) / len(known) if known else None
        problem = "; ".join(why.get(method, ()))
        numbers = [*_csv_numbers(row, others), mean_exchanges, len(known), problem]
        writer.writerow([method, len(row["finished"]), *numbers, *_csv_difference(differences.get(method))])
    return lines.getvalue()


OVER_SEEDS = ("mean", "std", "sem")
OF_A_DIFFERENCE = ("mean", "low", "high", "p", "p_holm")


def _csv_numbers(row: Mapping[str, Any], metrics: Sequence[str]) -> list[float | None]:
    """Mean, deviation and standard error of every measure of a row, and of the further metrics."""
    values = [row.get(name) for name in MEASURES] + [row.get("metrics", {}).get(name) for name in metrics]
    return [None if value is None else value[kind] for value in values for kind in OVER_SEEDS]


def _csv_difference(found: Mapping[str, Any] | None) -> list[Any]:
    """The baseline and the paired difference against it; empty where there is none."""
    if found is None:
        return [None] * (1 + len(OF_A_DIFFERENCE))
    return [found["baseline"], *(found[kind] for kind in OF_A_DIFFERENCE)]


LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", "±": r"$\pm$", MINUS: "$-$", NONE: "--",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "×": r"$\times$", "Δ": r"$\Delta$",
}  # fmt: skip


def in_latex(text: str) -> str:
    """Text with every character that LaTeX would read otherwise spelled out."""
    return "".join(LATEX.get(character, character) for character in text)


def as_latex(table: Mapping[str, Any], label: str = "tab:comparison") -> str:
    """The comparison as a LaTeX table (booktabs), with the paired differences.

    In bold are the best and all that cannot be told from it at the 5 % level.
    """
    titles, rows = columns(table), cells(table)
    kept = [
        i
        for i, title in enumerate(titles)
        if title not in {"variance", "passes", "seconds"} and not title.startswith("exchanges")
    ]
    rated = titles.index(RATE) if RATE in titles else titles.index("loss")
    differences = {row[0]: row[1:] for row in difference_cells(table)}
    further = difference_columns(table)[1:]
    head = [in_latex(titles[i]) for i in kept] + [
        in_latex(title) if not title.startswith("p") else title.replace("p", "$p$", 1) for title in further
    ]
    body, bold = [], {table["best"], *table.get("ties", ())}
    for row in rows:
        own = [in_latex(row[i]) for i in kept]
        if row[0] in bold:
            own[kept.index(rated)] = rf"\textbf{{{own[kept.index(rated)]}}}"
        own += [in_latex(cell) for cell in differences.get(row[0], [NONE] * len(further))]
        body.append("    " + " & ".join(own) + r" \\")
    ties = "Bold: the best, and what a test at the 5 % level does not tell from it." if len(bold) > 1 else ""
    about = " ".join(text for text in (caption(table), difference_caption(table), ties) if text)
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{in_latex(about)}}}",
        rf"  \label{{{label}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"    \toprule",
        "    " + " & ".join(head) + r" \\",
        r"    \midrule",
        *body,
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
