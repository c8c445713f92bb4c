"""The board's pages: what stands where, and the words around the numbers."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from coterie.runs import write_atomically
from coterie_board import words
from coterie_board.board import Board
from coterie_board.diagram import rank_diagram
from coterie_board.document import Block, Commands, Figure, Heading, Items, Table, Text, to_html, to_markdown
from coterie_board.federations import STRATA, BoardFederation
from coterie_board.methods import ORACLE, REFERENCE
from coterie_board.standings import Standing, standings
from coterie_board.strata import Effect, Ranking, rankings

MARK = "Written by `coterie leaderboard` from leaderboard.json: change that, not this."
METRICS = {"accuracy": "accuracy, %", "auc": "AUC, %", "rmse": "RMSE"}
MORE = {"accuracy": 100.0, "auc": 100.0, "rmse": 1.0}
"""What a metric is multiplied by to be printed."""


def write_pages(board: Board, out: Path, source: str = "leaderboard.json") -> None:
    """Write `leaderboard.md`, `board.html` and a picture of ranks per stratum, from the board alone.

    Args:
        board: what was run and what came of it.
        out: the folder for the pages.
        source: where the board's own file is, seen from there.
    """
    found = rankings(board)
    blocks = page(board, found, source)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "leaderboard.md", to_markdown(blocks, MARK).encode())
    write_atomically(out / "board.html", to_html(blocks, MARK).encode())
    for ranking in found:
        write_atomically(out / diagram_file(ranking), _diagram(ranking).encode())


def diagram_file(ranking: Ranking) -> str:
    """The file of a stratum's picture."""
    return f"leaderboard-{ranking.stratum}.svg"


def page(board: Board, found: Sequence[Ranking], source: str) -> list[Block]:
    """The blocks of the page."""
    complete = board.complete()
    tables = {entry.name: standings(board, entry) for entry in complete}
    blocks: list[Block] = [
        Heading("Leaderboard", 1),
        Text(words.introduction(board, complete)),
        Text(words.origin(board, source)),
        *_notes(board),
    ]
    if found:
        blocks += [Heading("Ranks and effects"), Text(words.rank_words())]
    for ranking in found:
        blocks += _stratum(ranking, complete, tables)
    if complete:
        blocks += [Heading("All results"), Text(words.matrix_words())]
    for stratum, title in STRATA.items():
        some = [entry for entry in complete if entry.stratum == stratum]
        if some:
            blocks += [Heading(title.capitalize(), 3), _matrix(board.methods, some, tables)]
    if complete:
        blocks += [Heading("Each federation"), Text(words.federation_words())]
        for entry in complete:
            blocks += _federation(entry, tables[entry.name])
        blocks += [Heading("Who failed, and why"), *_failures(complete, tables)]
    blocks += [Heading("The federations"), _federations(board, complete)]
    blocks += [Heading("How it is done"), Items(words.rules())]
    blocks += [Heading("What it does not show"), Items(words.limits(board))]
    blocks += [Heading("Add a row"), Text(words.third_party()), Commands(words.third_party_commands())]
    return blocks


def _diagram(ranking: Ranking, **how: str) -> str:
    shown = [ranking.mean(method) for method in ranking.methods]
    return rank_diagram(ranking.methods, shown, ranking.critical_difference, **how)


def _stratum(
    ranking: Ranking, complete: Sequence[BoardFederation], tables: dict[str, list[Standing]]
) -> Iterator[Block]:
    """What the federations of a stratum say together."""
    title = STRATA[ranking.stratum]
    yield Heading(title.capitalize(), 3)
    yield Items(words.findings(ranking))
    picture = f"Mean ranks on {title}, with bars over methods that do not differ"
    yield Figure(_diagram(ranking, ink="currentColor"), diagram_file(ranking), picture)
    rows = []
    for method in [*ranking.methods, ORACLE]:
        own = [one for name in ranking.federations for one in tables[name] if one.method == method]
        effect, regret = ranking.effects.get(method), ranking.regrets.get(method)
        if own:
            rows.append(
                [
                    f"`{method}`",
                    f"{ranking.mean(method):.1f}" if method in ranking.ranks else "",
                    _effect(effect),
                    "" if effect is None else words.p_text(effect.p_holm),
                    "" if regret is None or method == ORACLE else words.less_error(-regret),
                    *(_average(own, name) for name in ("ari", "conflict")),
                    str(sum(one.failed is not None for one in own) or ""),
                ]
            )
    titles = ["method", "mean rank", f"error to {REFERENCE}", "p (Holm)", "regret", "ARI", "conflict", "failed"]
    yield Table(titles, rows)


def _effect(effect: Effect | None) -> str:
    if effect is None:
        return ""
    text = words.less_error(effect.mean)
    if effect.low is None or effect.high is None:
        return text
    return f"{text} ({words.less_error(effect.high)} to {words.less_error(effect.low)})"


def _average(rows: Sequence[Standing], name: str) -> str:
    known = [value for one in rows if (value := getattr(one, name)) is not None]
    return f"{statistics.fmean(known):.2f}" if known else ""


def _federations(board: Board, complete: Sequence[BoardFederation]) -> Table:
    """All federations of the board, those that are missing among them."""
    rows = []
    for entry in sorted(board.federations, key=lambda entry: list(STRATA).index(entry.stratum)):
        options = ", ".join(f"{key}={value}" for key, value in entry.options.items())
        done = "" if entry in complete else "missing"
        rows.append(
            [f"`{entry.name}`", entry.stratum, entry.what, options, METRICS[entry.metric], f"{entry.passes:g}", done]
        )
    return Table(["federation", "stratum", "what", "options", "metric", "passes", "state"], rows, words=5)


def _notes(board: Board) -> list[Block]:
    return [Items(board.notes)] if board.notes else []


def _matrix(methods: Sequence[str], entries: Sequence[BoardFederation], tables: dict[str, list[Standing]]) -> Table:
    rows = []
    for method in methods:
        cells = []
        for entry in entries:
            one = next((one for one in tables[entry.name] if one.method == method), None)
            cells.append("" if one is None else _marked(one, entry, tables[entry.name]))
        if any(cells):
            rows.append([f"`{method}`", *cells])
    return Table(["method", *(f"{entry.name}, {METRICS[entry.metric]}" for entry in entries)], rows)


def _marked(one: Standing, entry: BoardFederation, rows: Sequence[Standing]) -> str:
    """A method's value on a federation, bold where none has a better one as printed."""
    if one.mean is None:
        return "failed"
    known = [other.mean for other in rows if other.mean is not None]
    best = max(known) if entry.higher_is_better else min(known)
    text = _value(one.mean, one.half, entry)
    return f"**{text}**" if _value(one.mean, None, entry) == _value(best, None, entry) else text


def _value(mean: float | None, half: float | None, entry: BoardFederation) -> str:
    if mean is None:
        return ""
    more, digits = MORE[entry.metric], 1 if MORE[entry.metric] == 100 else 3
    return f"{more * mean:.{digits}f}" + ("" if half is None else f" ± {more * half:.{digits}f}")


def _federation(entry: BoardFederation, rows: Sequence[Standing]) -> list[Block]:
    over = "" if entry.from_round is None else f", mean over the rounds from {entry.from_round} on"
    about = (
        f"{entry.what[0].upper()}{entry.what[1:]}. At most {entry.passes:g} passes; {METRICS[entry.metric]}{over}. "
        f"`coterie run --scenario {entry.builds}`."
    )
    columns = _columns(entry, rows)
    sign = 1 if entry.higher_is_better else -1
    lines = []
    for one in sorted(rows, key=lambda one: (one.mean is None, -sign * (one.mean or 0.0))):
        texts = (
            [show(one) for show in columns.values()] if one.mean is not None else ["failed", *[""] * (len(columns) - 1)]
        )
        lines.append([f"`{one.method}`", *texts])
    return [Heading(entry.name, 3), Text(about), Table(["method", *columns], lines)]


def _columns(entry: BoardFederation, rows: Sequence[Standing]) -> dict[str, Callable[[Standing], str]]:
    """Each column's title with what it shows of a row; those that say nothing here are left out."""
    columns: dict[str, Callable[[Standing], str]] = {
        METRICS[entry.metric]: lambda one: _marked(one, entry, rows),
        "worst tenth": lambda one: _value(one.worst, None, entry),
        "variance": lambda one: _number(one.variance, ".2g"),
        "ARI": lambda one: _number(one.ari, ".2f"),
        "concept": lambda one: _value(one.concept, None, entry),
        "conflict": lambda one: _number(one.conflict, ".2f"),
        "clusters": lambda one: _number(one.clusters, ".3g"),
        "back after (rounds, by seed)": lambda one: one.recovery or "",
        "passes": lambda one: _number(one.passes, ".0f"),
        "MB": lambda one: _number(one.megabytes, ".3g"),
        "CPU s": lambda one: _number(one.cpu, ".2g"),
        "difference (p)": lambda one: _difference(one, entry),
        "chosen": lambda one: f"`{one.choice}`",
    }
    return {title: show for title, show in columns.items() if any(show(one) for one in rows)}


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _difference(one: Standing, entry: BoardFederation) -> str:
    if one.gain is None:
        return ""
    more, digits = MORE[entry.metric], 1 if MORE[entry.metric] == 100 else 3
    half = "" if one.gain_half is None else f" ± {more * one.gain_half:.{digits}f}"
    return f"{more * one.gain:+.{digits}f}{half}" + (f" ({words.p_text(one.p_holm)})" if one.p_holm is not None else "")


def _failures(complete: Sequence[BoardFederation], tables: dict[str, list[Standing]]) -> list[Block]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in complete:
        for one in tables[entry.name]:
            if one.failed is not None:
                reasons.setdefault((one.method, _without_shapes(one.failed)), []).append(entry.name)
    if not reasons:
        return [Text("Nobody.")]
    rows = [[f"`{method}`", ", ".join(names), reason] for (method, reason), names in reasons.items()]
    return [Table(["method", "federations", "why (the message of the first)"], rows, words=3)]


def _without_shapes(reason: str) -> str:
    """A reason without what differs from one federation to the next, so that one line serves for all."""
    return re.sub(r", the data has \([^)]*\)|seed \d+: ", "", reason)
