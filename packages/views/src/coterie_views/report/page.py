"""The report: a run or a comparison as one HTML file that needs no network, and the same figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from coterie.errors import ConfigError, RunError
from coterie.runs import write_atomically
from coterie_views.report import sections
from coterie_views.report.drawing import inline_svg, save_figure
from coterie_views.report.figures import Figure, run_figures
from coterie_views.report.markup import Markup, element, page, section, table
from coterie_views.report.reading import RunView, given_baseline, judged, read_run
from coterie_views.report.study import StudyTable, read_study
from coterie_views.report.words import run_words
from coterie_views.verdict import Judgement, find_plain, verdict, verdict_note


def write_report(path: str | Path, out: str | Path | None = None, *, baseline: str | Path | None = None) -> Path:
    """Write the report of a run folder or a comparison folder; returns the file (`report.html` in the folder)."""
    place = _existing(path)
    target = Path(out) if out else place / "report.html"
    if target.is_dir():
        raise ConfigError(f"--out {target}: is a folder: give a file name such as {target / 'report.html'}")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, make_report(place, Path(baseline) if baseline else None).encode())
    return target


def make_report(place: Path, baseline: Path | None = None) -> str:
    """The report as HTML text."""
    style = files("coterie_views.report").joinpath("report.css").read_text(encoding="utf-8")
    if (place / "config.json").exists():
        run = read_run(place)
        title = f"{run.method} on {_where(run)}"
        return page(title, style, element("h1", title), *_run_content(run, _baselines(run, baseline)))
    if baseline is not None:
        raise ConfigError(f"--baseline goes with a run folder: {place} holds a comparison, with baselines of its own")
    return _study_page(place, style)


def write_plots(path: str | Path, out: str | Path, *, baseline: str | Path | None = None) -> list[Path]:
    """Write the figures of a run or comparison folder as PNG and SVG files into a folder; returns the files."""
    place, target = _existing(path), Path(out)
    if (place / "config.json").exists():
        run = read_run(place)
        others = _baselines(run, Path(baseline) if baseline else None)
        figures = run_figures(run, _against_runs(judged(run, others), others))
    else:
        figures = read_study(place).figures
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
    beside = [read_run(place) for place in find_plain(run.path, run.config)]
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


def _figures(figures: Sequence[Figure], title: str) -> Markup:
    if not figures:
        return Markup()
    shown = [
        element(
            "figure",
            element("h3", one.title),
            Markup(inline_svg(one.name, one.draw, height=one.height)),
            element("figcaption", one.caption),
        )
        for one in figures
    ]
    return section(title, element("div", *shown, class_="figures"))


def _study_page(place: Path, style: str) -> str:
    study = read_study(place)
    content: list[Any] = [element("h1", study.title), _lead("", study.summary)]
    for part in study.sections:
        if isinstance(part, StudyTable):
            notes = [element("p", note, class_="note") for note in part.notes]
            content.append(section(part.title, table(part.columns, part.rows), *notes))
        else:
            content.append(_figures(part, "In pictures"))
    if study.detail is not None:
        heading, folder = study.detail
        run = read_run(folder)
        content += [element("h1", heading, class_="next"), *_run_content(run, _baselines(run, None))]
    return page(study.title, style, *content)
