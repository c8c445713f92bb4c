"""The board's pages: what stands where, and the words around the numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from coterie.runs import write_atomically
from coterie_board import words
from coterie_board.board import Board
from coterie_board.diagram import rank_diagram
from coterie_board.document import Block, Commands, Figure, Heading, Items, Table, Text, to_html, to_markdown
from coterie_board.federations import KINDS, BoardFederation
from coterie_board.methods import REFERENCE
from coterie_board.standings import Ranking, Standing, make_ranking, standings

DIAGRAM = "leaderboard-ranks.svg"
MARK = "Written by `coterie leaderboard` from leaderboard.json: change that, not this."
METRICS = {"accuracy": "accuracy, %", "auc": "AUC, %", "rmse": "RMSE"}
MORE = {"accuracy": 100.0, "auc": 100.0, "rmse": 1.0}
"""What a metric is multiplied by to be printed."""


def write_pages(board: Board, out: Path, source: str = "leaderboard.json") -> None:
    """Write `leaderboard.md`, `leaderboard-ranks.svg` and `board.html`, from the board alone.

    Args:
        board: what was run and what came of it.
        out: the folder for the pages.
        source: where the board's own file is, seen from there.
    """
    blocks, diagram = page(board, source)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "leaderboard.md", to_markdown(blocks, MARK).encode())
    write_atomically(out / "board.html", to_html(blocks, MARK).encode())
    if diagram is not None:
        write_atomically(out / DIAGRAM, diagram.encode())


def page(board: Board, source: str) -> tuple[list[Block], str | None]:
    """The blocks of the page, and the diagram of ranks as a file of its own."""
    complete = board.complete()
    tables = {entry.name: standings(board, entry) for entry in complete}
    ranking = make_ranking(board)
    blocks: list[Block] = [
        Heading("Leaderboard", 1),
        Text(words.introduction(board, complete)),
        Text(words.origin(board, source)),
    ]
    diagram = None
    if ranking is not None:
        shown, width = [ranking.mean(method) for method in ranking.methods], ranking.critical_difference
        diagram = rank_diagram(ranking.methods, shown, width)
        inline = rank_diagram(ranking.methods, shown, width, ink="currentColor")
        blocks += [
            Heading("What it shows"),
            Items(words.findings(ranking, complete)),
            *_notes(board),
            Heading("Ranks"),
            Text(words.rank_words(ranking)),
            Figure(inline, DIAGRAM, "Mean ranks of the methods, with bars over those that do not differ"),
            _rank_table(ranking, complete, tables),
        ]
    order = ranking.methods if ranking is not None else []
    order = [*order, *(method for method in board.methods if method not in order)]
    blocks += [Heading("All results"), Text(words.matrix_words())]
    for kind, title in KINDS.items():
        some = [entry for entry in complete if entry.kind == kind]
        if some:
            blocks += [Heading(title.capitalize(), 3), _matrix(order, some, tables)]
    blocks += [Heading("Each federation"), Text(words.federation_words())]
    for entry in complete:
        blocks += _federation(board, entry, tables[entry.name])
    blocks += [Heading("Who failed, and why"), *_failures(complete, tables)]
    blocks += [Heading("How it was done"), Items(words.rules())]
    blocks += [Heading("What it does not show"), Items(words.limits(board))]
    blocks += [Heading("Add a row"), Text(words.third_party()), Commands(words.third_party_commands())]
    return blocks, diagram


def _notes(board: Board) -> list[Block]:
    return [Heading("What we make of it"), Items(board.notes)] if board.notes else []


def _rank_table(ranking: Ranking, complete: Sequence[BoardFederation], tables: dict[str, list[Standing]]) -> Table:
    kinds = {kind: [entry.name for entry in complete if entry.kind == kind] for kind in KINDS}
    kinds = {kind: names for kind, names in kinds.items() if names}
    rows = []
    for method in ranking.methods:
        own = [one for entry in complete for one in tables[entry.name] if one.method == method]
        better = sum((one.gain or 0.0) > 0 for one in own)
        worse = sum((one.gain or 0.0) < 0 or one.failed is not None for one in own)
        _, corrected = ranking.against_reference.get(method, (None, None))
        rows.append(
            [
                f"`{method}`",
                f"{ranking.mean(method):.1f}",
                *(f"{ranking.mean(method, names):.1f}" for names in kinds.values()),
                "" if method == REFERENCE else f"{better} / {worse}",
                words.p_text(corrected),
                str(sum(one.failed is not None for one in own) or ""),
            ]
        )
    titles = ["method", "mean rank", *(f"{kind} ({len(names)})" for kind, names in kinds.items())]
    return Table([*titles, f"better / worse than {REFERENCE}", "p (Holm)", "failed"], rows)


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


def _federation(board: Board, entry: BoardFederation, rows: Sequence[Standing]) -> list[Block]:
    options = ", ".join(f"{key}={value}" for key, value in entry.options.items())
    metric = METRICS[entry.metric]
    over = "" if entry.from_round is None else f", mean over the rounds from {entry.from_round} on"
    about = (
        f"{entry.what[0].upper()}{entry.what[1:]}. {entry.rounds} rounds, at most "
        f"{board.max_bytes[entry.name] / 1e6:.4g} MB; {metric}{over}. "
        f"`coterie run --scenario {entry.name}` with {options or 'its own options'}."
    )
    truth = any(one.ari is not None for one in rows)
    drift = any(one.recovery is not None for one in rows)
    sign = 1 if entry.higher_is_better else -1
    lines = []
    for one in sorted(rows, key=lambda one: (one.mean is None, -sign * (one.mean or 0.0))):
        if one.mean is None:
            width = 8 + truth + drift
            lines.append([f"`{one.method}`", "failed", *[""] * (width - 1)])
            continue
        lines.append(
            [
                f"`{one.method}`",
                _marked(one, entry, rows),
                _value(one.worst, None, entry),
                *([f"{one.ari:.2f}" if one.ari is not None else ""] if truth else []),
                f"{one.clusters:.3g}",
                *([one.recovery or ""] if drift else []),
                f"{one.megabytes:.3g}",
                f"{one.cpu:.2g}",
                f"{one.rounds:.3g}",
                _difference(one, entry),
                f"`{one.choice}`",
            ]
        )
    for line in lines:
        line += [""] * (9 + truth + drift - len(line))
    titles = ["method", metric, "worst tenth", *(["ARI"] if truth else []), "clusters"]
    titles += [*(["back after (rounds, by seed)"] if drift else []), "MB", "CPU s", "rounds"]
    return [Heading(entry.name, 3), Text(about), Table([*titles, "difference (p)", "chosen"], lines)]


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
