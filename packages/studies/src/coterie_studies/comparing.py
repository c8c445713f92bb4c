"""The figures of a comparison: curves over rounds, and how evenly each method serves the clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.runs import RunFolder
from coterie_studies.ranking import measure_of
from coterie_views.report import Draw, Figure, RunView, colour, judged, logarithmic, over_rounds, read_run
from coterie_views.verdict import LOSS, Measure

MOST_METHODS = 20


def comparison_figures(place: Path, table: Mapping[str, Any]) -> list[Figure]:
    """Curves and spread of every method that has something to show."""
    measure = measure_of(table)
    courses = {row["method"]: _course(place, row, measure) for row in table["rows"][:MOST_METHODS]}
    courses = {method: course for method, course in courses.items() if course}
    rows = [row for row in table["rows"][:MOST_METHODS] if row[measure.name] is not None]
    found = []
    if courses:
        caption = "On own test data, the mean over clients and seeds; the band shows the seeds' extremes."
        found.append(
            Figure(
                "comparison",
                f"{measure.name.capitalize()} over rounds",
                caption,
                _curves(courses, measure),
                3.4 + 0.2 * (len(courses) // 3),
            )
        )
    if rows:
        caption = "Dot: the mean client; line: from the worst to the best tenth of the clients, over all seeds."
        height = 1.1 + 0.36 * len(rows)
        found.append(Figure("spread", "How evenly clients are served", caption, _spread(place, rows, measure), height))
    return found


def gain_rows(place: Path, table: Mapping[str, Any], baseline: str = "fedavg") -> list[tuple[str, ...]]:
    """Each method against the baseline, over all seeds: clients that gained, that lost, mean and worst change.

    Empty where the baseline is not among the methods.
    """
    measure, rows = measure_of(table), {row["method"]: row for row in table["rows"]}
    if baseline not in rows:
        return []
    base = {seed: _read(place, rows[baseline], seed) for seed in rows[baseline]["finished"]}
    found: list[tuple[str, ...]] = []
    for method, row in rows.items():
        values: list[float] = []
        for seed in row["finished"] if method != baseline else ():
            run = _read(place, row, seed)
            against = [one for one in judged(run, [base[seed]]) if one.baseline == baseline] if seed in base else []
            values += [difference for one in against for difference in one.differences.values()]
        if values:
            up, down = (sum(sign * measure.gain(v) > 0 for v in values) for sign in (1, -1))
            mean, worst = sum(values) / len(values), min(values, key=measure.gain)
            found.append((method, str(up), str(down), measure.change(mean), measure.change(worst)))
    return found


def _read(place: Path, row: Mapping[str, Any], seed: int) -> RunView:
    return read_run(place / row["folders"][str(seed)])


def _course(place: Path, row: Mapping[str, Any], measure: Measure) -> dict[int, list[float]]:
    """Mean accuracy or loss by round, one value per seed."""
    course: dict[int, list[float]] = {}
    for folder in row["folders"].values():
        for record in RunFolder(place / folder).history():
            mean = measure.of(record).mean
            if mean is not None:
                course.setdefault(record.round, []).append(measure.shown(mean))
    return dict(sorted(course.items()))


def _curves(courses: Mapping[str, dict[int, list[float]]], measure: Measure) -> Draw:
    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for i, (method, course) in enumerate(courses.items()):
            rounds = list(course)
            axes.plot(rounds, [np.mean(values) for values in course.values()], color=colour(i), label=method)
            low, high = ([f(values) for values in course.values()] for f in (min, max))
            axes.fill_between(rounds, low, high, color=colour(i), alpha=0.15, linewidth=0)
        over_rounds(axes, ylabel=measure.title)
        if measure is LOSS:
            logarithmic(axes)
        figure.legend(loc="outside upper center", ncols=3)

    return draw


def _spread(place: Path, rows: list[Mapping[str, Any]], measure: Measure) -> Draw:
    ends = []
    for row in rows:
        found = [RunFolder(place / row["folders"][str(seed)]).summary() for seed in row["finished"]]
        spreads = [measure.of(summary) for summary in found if summary is not None]
        ends.append(
            [
                measure.shown(float(np.mean([value or 0.0 for value in values])))
                for values in ([s.worst10 for s in spreads], [s.best10 for s in spreads])
            ]
        )

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for i, (row, (low, high)) in enumerate(zip(rows, ends, strict=True)):
            axes.plot([low, high], [-i, -i], color=colour(i), lw=5, alpha=0.45, solid_capstyle="round")
            axes.plot([measure.shown(row[measure.name]["mean"])], [-i], color=colour(i), marker="o", ms=7)
        axes.set_yticks([-i for i in range(len(rows))], [row["method"] for row in rows])
        axes.set(xlabel=measure.title, ylim=(-len(rows) + 0.4, 0.6))

    return draw
