"""A comparison as the report shows it: a paragraph, its tables and figures, and its best method in detail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie_studies import tables
from coterie_studies.comparing import comparison_figures, gain_rows
from coterie_studies.comparison import read_comparison
from coterie_studies.ranking import measure_of
from coterie_views.report import Figure, StudyReport, StudyTable, size
from coterie_views.verdict import PLAIN


def read_study(place: Path) -> StudyReport:
    """The report of a comparison's folder, or of one in which run folders lie side by side."""
    found = read_comparison(place)
    where = found["options"].get("scenario") or found["options"].get("data")
    title = f"{len(found['rows'])} methods compared" + (f" on {where}" if where else "")
    problems = [f"{method}: {text}" for method, text in tables.problems(found)]
    notes = [tables.caption(found), *problems]
    sections: list[StudyTable | list[Figure]] = [
        StudyTable("The table", tables.columns(found), tables.cells(found), notes)
    ]
    if titles := tables.difference_columns(found):
        rows, about = tables.difference_cells(found), tables.difference_caption(found)
        sections.append(StudyTable("Paired differences", titles, rows, [about]))
    sections.append(comparison_figures(place, found))
    if against := gain_rows(place, found):
        titles = ["method", "gained", "lost", "mean change", "worst change"]
        note = f"Clients of all seeds, each on its own test data, against its {measure_of(found).name} under fedavg."
        sections.append(StudyTable("Who gained over one model for all", titles, against, [note]))
    return StudyReport(title, comparison_words(found), sections, _detail(place, found))


def _detail(place: Path, found: Mapping[str, Any]) -> tuple[str, Path] | None:
    """The best of the methods that are no baselines: a heading, and its first run's folder."""
    measure = measure_of(found)
    rated = [row for row in found["rows"] if row[measure.name] and row["method"].partition(":")[0] not in PLAIN]
    if not rated:
        return None
    chosen = max(rated, key=lambda row: measure.gain(row[measure.name]["mean"]))
    seed = chosen["finished"][0]
    heading = f"The best of the others in detail: {chosen['method']}, seed {seed}"
    return heading, place / chosen["folders"][str(seed)]


def comparison_words(table: Mapping[str, Any]) -> str:
    """A paragraph on a comparison: who came first, who cannot be told from it, and at what cost."""
    measure = measure_of(table)
    rated = {row["method"]: row for row in table["rows"] if row[measure.name] is not None}
    if not rated:
        return "No run has finished yet."
    best = rated[table["best"]]
    seeds = len(table["seeds"])
    times = "once" if seeds == 1 else f"with {seeds} seeds"
    same = " and ".join(name for name, one in table.get("spent", {}).items() if one["equal"])
    budget = f" with the same {same}" if same else ""
    lines = [
        f"{len(table['rows'])} methods were run on the same clients{budget}, {times}. "
        f"{best['method']} has the best mean {measure.name}: {measure.text(best[measure.name]['mean'])}, "
        f"and {measure.text(best['worst10']['mean'])} for the worst tenth of the clients."
    ]
    if ties := table.get("ties"):
        lines.append(f"A test at the 5 % level does not tell it from {' and '.join(ties)}.")
    fair = max(rated.values(), key=lambda row: measure.gain(row["worst10"]["mean"]))
    if fair is not best:
        lines.append(
            f"The worst-served clients do best with {fair['method']} ({measure.text(fair['worst10']['mean'])})."
        )
    spoken = [row for row in rated.values() if row["bytes"]["mean"] > 0]
    if len(spoken) > 1:
        least, most = (f(spoken, key=lambda row: row["bytes"]["mean"]) for f in (min, max))
        lines.append(
            f"{least['method']} sent least ({size(least['bytes']['mean'])}), "
            f"{most['method']} most ({size(most['bytes']['mean'])})."
        )
    return " ".join(lines)
