"""The page of the papers: every table and figure beside ours, built from stored results without running anything.

`python -m coterie_recipes.papers docs` rewrites the part of `docs/papers.md` between its two marks.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import ConfigError
from coterie.methods import method_classes
from coterie.methods.published import departures_of, paper_of
from coterie.option_types import value_in_words
from coterie_recipes import papers_pictures
from coterie_recipes.freshness import is_fresh
from coterie_recipes.papers_cfl_ifca import CFL, IFCA
from coterie_recipes.papers_cuau_flt import FEDCUAU, FLT
from coterie_recipes.papers_index import Item, Pattern
from coterie_recipes.stored import standard_error

PAPERS = {"CFL": CFL, "IFCA": IFCA, "FedCUAU": FEDCUAU, "FLT": FLT}
BEGIN = "<!-- From here on the page is built by `python -m coterie_recipes.papers docs` from docs/results. -->"
END = "<!-- End of what is built. -->"
CHANGED = "the recipe has changed since"
FORMER = "former rule"
"""In a note of a stored result, where a method has another rule now."""
FROM_CODE = "<!-- From here to the next mark, built by the same command from the methods themselves. -->"
END_OF_CODE = "<!-- End of what the methods say. -->"
AGREES, DIFFERS = "agrees", "differs"
SMALLER, ONE_SEED, IN_WORDS = "smaller than the paper's", "one seed, no ± printed", "no number printed"
"""Why a row of ours cannot be compared with the paper's."""
HOW = """A row agrees where our mean is within two standard errors and the paper's own ± of its number. One seed has no
error: it is held to the paper's ± alone. A row that is smaller than the paper's, or has no number to be held to, is not
comparable."""
NUMBER = re.compile(r"(?:≈ )?(-?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?$")


@dataclass(frozen=True)
class Shown:
    """An item of the index with the stored results that it is shown by; None where it was not run."""

    item: Item
    stored: Mapping[str, Any] | None
    rows: Sequence[Mapping[str, Any]]


def rebuilt(page: str, results: Path) -> str:
    """The page with what stands between its marks built anew: departures, and the folder of stored results.

    Raises:
        ConfigError: a mark is missing, a result lacks a row of the index, or a row that differs from the paper's lacks
            a sentence on what differs.
    """
    page = _between(page, FROM_CODE, END_OF_CODE, departures_markdown())
    return _between(page, BEGIN, END, _body(results))


def _between(page: str, begin: str, end: str, text: str) -> str:
    """The page with another text between two marks."""
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ConfigError(f"the page must hold {begin!r} and {end!r} once each")
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def departures_markdown() -> str:
    """Where defaults depart from a paper, what `as=paper` leaves, and the tables whose settings are known."""
    found = [(name, cls, paper) for name, cls in method_classes().items() if (paper := paper_of(cls)) is not None]
    lines = [
        "| method | option | `as=paper` | what the default does instead | why, and what it changes |",
        "|---|---|---|---|---|",
    ]
    for name, cls, _ in found:
        for one in departures_of(cls):
            point = " | ".join(map(_cell, (value_in_words(one.paper), one.here, one.why)))
            lines.append(f"| `{name}` | `{one.option}` | {point} |")
    plain = [f"`{name}`" for name, cls, _ in found if not departures_of(cls)]
    lines += ["", f"No default departs in {', '.join(plain)}. Different with `as=paper` too:", ""]
    lines += ["| method | as printed | here | why |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {' | '.join(map(_cell, one))} |" for name, _, paper in found for one in paper.differences]
    lines += ["", "Tables and figures whose hyper-parameters are known by name:", ""]
    lines += ["| method | settings | beside them |", "|---|---|---|"]
    for name, _, paper in found:
        for known, table in paper.tables.items():
            chosen = {**table.training, **table.federation}
            settings = ", ".join(f"{key}={value}" for key, value in chosen.items())
            lines.append(f"| `{name}:as={known}` | {settings} | {table.ours} |")
    return "\n".join(lines) + "\n"


def _body(results: Path) -> str:
    sections = {paper: [shown(item, results) for item in items] for paper, items in PAPERS.items()}
    every = [one for items in sections.values() for one in items]
    run = [one for one in every if one.stored is not None]
    full = [one for one in run if _size(one) == "full"]
    lines = [
        "## Every table and figure",
        "",
        f"{len(every)} entries, {len(run)} of them run, {len(full)} at the paper's size; the rows are below. {HOW}",
        "",
        "| | table or figure | size | seeds | agree | differ | not comparable | why |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for paper, items in sections.items():
        lines += [f"| {paper} | {one.item.place}: {one.item.about} | {_at_a_glance(one)} |" for one in items]
    for paper, items in sections.items():
        lines += ["", f"## {paper}, in detail"]
        for one in items:
            if one.stored is not None:
                lines += ["", *_details(one)]
    return "\n".join(lines) + "\n"


def shown(item: Item, results: Path) -> Shown:
    """The item with the rows that its file holds, in the order of the index."""
    path = results / f"{item.stored}.json"
    if item.stored is None or not path.exists():
        if not item.not_run:
            raise ConfigError(f"{item.place} ({item.about}): {path} is missing; store it, or say why it was not run")
        return Shown(item, None, ())
    stored = json.loads(path.read_text(encoding="utf-8"))
    chosen = []
    for setting, measure in item.rows:
        found = [row for row in stored["rows"] if _matches(row, (setting, measure))]
        if not found:
            raise ConfigError(f"{path}: has no row {setting!r}, {measure!r}")
        chosen += [row for row in found if row not in chosen]
    far = [row for row in chosen if differs(row)]
    if far and not item.differs:
        names = "; ".join(f"{row['setting']}, {row['measure']}" for row in far)
        raise ConfigError(f"{item.place} ({item.about}): say what differs from the paper's at {names}")
    return Shown(item, stored, chosen)


def differs(row: Mapping[str, Any]) -> bool:
    """Whether our mean is further from the paper's number than two standard errors and the paper's own ±.

    A single value has no error, and is held to the paper's ± where it prints one.
    """
    number = _number(row)
    error = standard_error(row["values"])
    if number is None or (error is None and number[1] is None):
        return False
    allowed = 2 * (error or 0) + (number[1] or 0)
    return abs(statistics.fmean(row["values"]) - number[0]) > allowed + 1e-9


def judged(row: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    """AGREES, DIFFERS, or why a row cannot be compared with the paper's."""
    number = _number(row)
    if number is None:
        return IN_WORDS
    if stored.get("scale") != "full":
        return SMALLER
    if len(row["values"]) == 1 and number[1] is None:
        return ONE_SEED
    return DIFFERS if differs(row) else AGREES


def _number(row: Mapping[str, Any]) -> tuple[float, float | None] | None:
    """The number that the paper prints, and its ±."""
    found = NUMBER.match(str(row.get("paper", "")))
    return None if found is None else (float(found[1]), float(found[2]) if found[2] else None)


def _matches(row: Mapping[str, Any], pattern: Pattern) -> bool:
    return _fits(row["setting"], pattern[0]) and _fits(row["measure"], pattern[1])


def _fits(text: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), text) is not None


def _at_a_glance(one: Shown) -> str:
    """The columns of an entry after its name."""
    if one.stored is None:
        return f"| | | | | {one.item.not_run}"
    found = Counter(judged(row, one.stored) for row in one.rows)
    why = [f"{found[reason]} {reason}" for reason in (SMALLER, ONE_SEED, IN_WORDS) if found[reason]]
    why += [word for word in (_out_of_date(one.stored),) if word]
    apart = found.total() - found[AGREES] - found[DIFFERS]
    counts = " | ".join(str(count or "") for count in (found[AGREES], found[DIFFERS], apart))
    return f"{_size(one)} | {_seeds(one.stored)} | {counts} | {'; '.join(why)}"


def _size(one: Shown) -> str:
    return "" if one.stored is None else str(one.stored.get("scale", "quick"))


def _seeds(stored: Mapping[str, Any]) -> int:
    named = stored.get("seeds")
    return len(named) if isinstance(named, list) else max(len(row["values"]) for row in stored["rows"])


def _out_of_date(stored: Mapping[str, Any]) -> str:
    """What has changed since a result was stored, in words."""
    if any(FORMER in note for note in stored.get("notes", ())):
        return f"by a {FORMER}"
    return CHANGED if "recipe" in stored and not is_fresh(stored) else ""


def _scale(stored: Mapping[str, Any]) -> str:
    seeds = _seeds(stored)
    words = [f"{seeds} seeds" if seeds > 1 else "one seed"]
    seconds = stored.get("cpu_seconds")
    if seconds is not None:
        words.append(f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min")
    return ", ".join([*words, *filter(None, [_out_of_date(stored)])])


def _details(one: Shown) -> list[str]:
    item, stored = one.item, one.stored
    assert stored is not None
    named = stored.get("seeds")
    seeds = f"; seeds {named[0]} to {named[-1]}" if isinstance(named, list) and len(named) > 1 else ""
    lines = [
        f"### {item.place}: {item.about}",
        "",
        f"`{stored['command']}` ({_scale(stored)}{seeds}; commit {stored['commit']}, {stored['date']}, "
        f"{stored['machine']}).",
    ]
    lines += [f"The paper: {item.says}"] if item.says else []
    if is_figure(item):
        lines += ["", f"![Ours: {item.about}](images/{picture_of(item)})"]
    lines += ["", "| setting | measure | paper | ours | |", "|---|---|---|---|---|"]
    for row in one.rows:
        point = " | ".join((_cell(row["setting"]), _cell(row["measure"]), _printed(row), _value(row)))
        verdict = judged(row, stored)
        lines.append(f"| {point} | {'' if verdict == IN_WORDS else verdict} |")
    notes = [*stored.get("notes", ()), *([f"What differs: {item.differs}"] if item.differs else [])]
    return [*lines, *([""] if notes else []), *(f"* {note}" for note in notes)]


def _cell(text: str) -> str:
    """Text in a cell of a table."""
    return text.replace("|", "\\|")


def _printed(row: Mapping[str, Any]) -> str:
    paper = row.get("paper")
    return "" if paper is None else str(paper)


def _value(row: Mapping[str, Any]) -> str:
    error = standard_error(row["values"])
    mean = f"{statistics.fmean(row['values']):.4g}"
    return mean if error is None else f"{mean} ± {error:.2g}"


def is_figure(item: Item) -> bool:
    """Whether the paper draws it."""
    return item.place.startswith("Figure")


def picture_of(item: Item) -> str:
    """The file below docs/images that ours is drawn in."""
    if item.picture:
        return item.picture
    return (
        "papers/"
        + "-".join(re.findall(r"[a-z0-9]+", f"{item.stored} {item.place}".lower().removeprefix("papers/")))
        + ".svg"
    )


def main(docs: Path) -> None:
    """Rewrite the page in a folder of documents, and draw its pictures."""
    page = docs / "papers.md"
    for item in (item for items in PAPERS.values() for item in items if is_figure(item)):
        one = shown(item, docs / "results")
        if one.rows and not item.picture:
            papers_pictures.write(one.rows, docs / "images" / picture_of(item))
    page.write_text(rebuilt(page.read_text(encoding="utf-8"), docs / "results"), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m coterie_recipes.papers DOCS")
    main(Path(sys.argv[1]))
