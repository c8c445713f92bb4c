"""The report: a run or a comparison as one HTML file that needs no network, and the same figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from coterie.errors import ConfigError, RunError
from coterie.report import sections
from coterie.report.comparing import comparison_figures, gain_rows, measure_of
from coterie.report.drawing import inline_svg, need_matplotlib, save_figure
from coterie.report.figures import Figure, run_figures
from coterie.report.markup import Markup, element, page, section, table
from coterie.report.reading import RunView, find_baselines, given_baseline, judged, read_run
from coterie.report.tables import (
    caption,
    cells,
    columns,
    difference_caption,
    difference_cells,
    difference_columns,
    problems,
)
from coterie.report.words import comparison_words, run_words
from coterie.runs.comparison import read_comparison
from coterie.runs.verdict import PLAIN, Judgement, verdict, verdict_note
from coterie.snapshot import write_atomically


def write_report(path: str | Path, out: str | Path | None = None, *, baseline: str | Path | None = None) -> Path:
    """Write the report of a run folder or a comparison folder; returns the file (`report.html` in the folder)."""
    need_matplotlib()
    place = _existing(path)
    target = Path(out) if out else place / "report.html"
    if target.is_dir():
        raise ConfigError(f"--out {target}: is a folder: give a file name such as {target / 'report.html'}")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, make_report(place, Path(baseline) if baseline else None).encode())
    return target


def make_report(place: Path, baseline: Path | None = None) -> str:
    """The report as HTML text."""
    style = files("coterie.report").joinpath("report.css").read_text(encoding="utf-8")
    if (place / "config.json").exists():
        run = read_run(place)
        title = f"{run.method} on {_where(run)}"
        return page(title, style, element("h1", title), *_run_content(run, _baselines(run, baseline)))
    if baseline is not None:
        raise ConfigError(f"--baseline goes with a run folder: {place} holds a comparison, with baselines of its own")
    return _comparison_page(place, style)


def write_plots(path: str | Path, out: str | Path, *, baseline: str | Path | None = None) -> list[Path]:
    """Write the figures of a run or comparison folder as PNG and SVG files into a folder; returns the files."""
    need_matplotlib()
    place, target = _existing(path), Path(out)
    if (place / "config.json").exists():
        run = read_run(place)
        others = _baselines(run, Path(baseline) if baseline else None)
        figures = run_figures(run, _against_runs(judged(run, others), others))
    else:
        figures = comparison_figures(place, read_comparison(place))
    target.mkdir(parents=True, exist_ok=True)
    return [file for one in figures for file in save_figure(target, one.name, one.draw, height=one.height)]


def _existing(path: str | Path) -> Path:
    place = Path(path)
    if not place.is_dir():
        raise RunError(f"{place}: no such folder: give a run's or a comparison's")
    return place


def _where(run: RunView) -> str:
    if run.summary is not None:
        return run.summary.scenario
    return str(run.config.get("scenario") or run.config.get("data") or "a federation from Python")


def _baselines(run: RunView, given: Path | None) -> list[RunView]:
    """The runs to measure against: the one that was named, and those of fedavg and local that lie beside the run."""
    named = [given_baseline(run, given)] if given else []
    beside = find_baselines(run.path, run.config)
    return named + [other for other in beside if other.method not in {one.method for one in named}]


def _against_runs(found: Sequence[Judgement], others: Sequence[RunView]) -> list[Judgement]:
    """Without the judgement against a constant answer."""
    methods = {other.method for other in others}
    return [one for one in found if one.baseline in methods]


def _run_content(run: RunView, others: Sequence[RunView]) -> list[Markup]:
    found = judged(run, others) if run.finished else []
    against = _against_runs(found, others)
    return [
        element("p", _subtitle(run), class_="sub"),
        _lead(verdict(found), run_words(run, against, others), verdict_note(found)),
        _figures(run_figures(run, against), "In pictures"),
        sections.tree(run),
        sections.clusters(run),
        sections.explanation(run),
        sections.clients(run, against),
        sections.events(run),
        sections.settings(run.config),
    ]


def _lead(headline: str, paragraph: str, note: str = "") -> Markup:
    first = element("p", element("strong", headline)) if headline else Markup()
    last = element("p", note, class_="note") if note else Markup()
    return element("div", first, element("p", paragraph), last, class_="lead")


def _subtitle(run: RunView) -> str:
    state = "finished" if run.finished else f"unfinished, round {len(run.history)} of {run.config.get('rounds')}"
    seconds = sum(record.seconds for record in run.history)
    return f"model {run.config.get('model')} · seed {run.config.get('seed')} · {state} · {seconds:.1f} s of computing"


def _figures(figures: Sequence[Figure], title: str, prefix: str = "") -> Markup:
    if not figures:
        return Markup()
    shown = [
        element(
            "figure",
            element("h3", one.title),
            Markup(inline_svg(prefix + one.name, one.draw, height=one.height)),
            element("figcaption", one.caption),
        )
        for one in figures
    ]
    return section(title, element("div", *shown, class_="figures"))


def _comparison_page(place: Path, style: str) -> str:
    found = read_comparison(place)
    where = found["options"].get("scenario") or found["options"].get("data")
    title = f"{len(found['rows'])} methods compared" + (f" on {where}" if where else "")
    notes = [element("p", f"{method}: {text}", class_="note") for method, text in problems(found)]
    content: list[Any] = [
        element("h1", title),
        _lead("", comparison_words(found)),
        section("The table", table(columns(found), cells(found)), element("p", caption(found), class_="note"), *notes),
    ]
    if titles := difference_columns(found):
        about = element("p", difference_caption(found), class_="note")
        content.append(section("Paired differences", table(titles, difference_cells(found)), about))
    content.append(_figures(comparison_figures(place, found), "In pictures"))
    measure = measure_of(found)
    if against := gain_rows(place, found):
        titles = ["method", "gained", "lost", "mean change", "worst change"]
        note = f"Clients of all seeds, each on its own test data, against its {measure.name} under fedavg."
        content.append(
            section("Who gained over one model for all", table(titles, against), element("p", note, class_="note"))
        )
    rated = [row for row in found["rows"] if row[measure.name] and row["method"].partition(":")[0] not in PLAIN]
    if rated:
        chosen = max(rated, key=lambda row: measure.gain(row[measure.name]["mean"]))
        seed = chosen["finished"][0]
        run = read_run(place / chosen["folders"][str(seed)])
        heading = f"The best of the others in detail: {chosen['method']}, seed {seed}"
        content += [element("h1", heading, class_="next"), *_run_content(run, _baselines(run, None))]
    return page(title, style, *content)
