"""The command `coterie leaderboard`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from coterie.errors import ConfigError
from coterie_board.about import about_this_run
from coterie_board.board import Board, run_board
from coterie_board.federations import SUBSET, SUBSET_METHODS, BoardFederation, find_federations
from coterie_board.methods import METHODS
from coterie_board.pages import write_pages

FILE = "leaderboard.json"
EXAMPLES = """\b
Examples:
  coterie leaderboard --out runs/leaderboard
  coterie leaderboard --subset --seeds 2 --out runs/subset
  coterie leaderboard --base docs/results/leaderboard.json --out runs/leaderboard
  coterie leaderboard --methods fedavg,cfl --federations digits-iid --out runs/small
  coterie leaderboard --base docs/results/leaderboard.json --add my_package.my_module:MyMethod --out runs/mine
  coterie leaderboard --pages docs/results/leaderboard.json --out docs
"""


def count_or_auto(context: click.Context, parameter: click.Parameter, value: str) -> int | Literal["auto"]:
    """A number of processes, or "auto"."""
    if value == "auto":
        return "auto"
    if not value.isdigit() or int(value) < 1:
        raise click.BadParameter(f"{value!r}: give a number of processes, or 'auto'")
    return int(value)


def listed(texts: Sequence[str]) -> list[str]:
    """Names that are given several times or by commas."""
    return [name for text in texts for name in text.split(",") if name]


def _to_run(
    held: Board | None, names: Sequence[str], columns: Sequence[str], added: Sequence[str]
) -> tuple[Sequence[BoardFederation], list[str], list[str]]:
    """The board's federations, the methods to run, and on which federations if not on all.

    Of a stored board all that is missing is run, or what is named; a new row on those federations that it has.
    """
    if held is None:
        return find_federations(columns), [*(names or METHODS), *added], []
    own = [row for row in held.methods if row in METHODS]
    done = [name for name, rows in held.results.items() if rows]
    return held.federations, [*(names or ([] if added else own)), *added], list(columns or (done if added else []))


@click.command(epilog=EXAMPLES)
@click.option("--out", default="runs/leaderboard", show_default=True, metavar="DIR", help="folder for runs and pages")
@click.option("--methods", multiple=True, metavar="NAME", help="rows, several times or by commas  [default: all]")
@click.option(
    "--add",
    "added",
    multiple=True,
    metavar="METHOD",
    help="another row: a name, name:key=value or package.module:Class",
)
@click.option("--federations", multiple=True, metavar="NAME", help="columns, as --methods  [default: all of the board]")
@click.option("--subset", is_flag=True, help="six methods on four federations, without a download")
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="final runs per method")
@click.option(
    "--base", metavar="FILE", help="a leaderboard.json whose results are taken as they are; what it lacks is run"
)
@click.option("--pages", metavar="FILE", help="run nothing: write the pages of this leaderboard.json to --out")
@click.option("--data-dir", default=None, metavar="DIR", help="where data sets are (default: COTERIE_DATA)")
@click.option(
    "--workers", callback=count_or_auto, default="auto", show_default=True, metavar="N|auto", help="runs at once"
)
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def leaderboard(
    out: str,
    methods: tuple[str, ...],
    added: tuple[str, ...],
    federations: tuple[str, ...],
    subset: bool,
    seeds: int,
    base: str | None,
    pages: str | None,
    data_dir: str | None,
    workers: int | Literal["auto"],
    quiet: bool,
) -> None:
    """Run methods on the board's federations, all tuned alike, and rank them in each stratum.

    Every run is kept as soon as it is done: the same command resumes after a stop, and --base runs what a stored board
    lacks. Written are leaderboard.json and, made of it alone, leaderboard.md, its pictures and board.html.
    """
    folder = Path(out)

    def log(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    if pages is not None:
        write_pages(Board.read(Path(pages)), folder, Path(os.path.relpath(pages, folder)).as_posix())
        return
    held = Board.read(Path(base)) if base is not None else None
    if subset and (held is not None or federations):
        raise ConfigError("--base, --federations and --subset each say which federations they are: leave --subset out")
    names = listed(methods) or list(SUBSET_METHODS if subset else ())
    columns = list(SUBSET) if subset else listed(federations)
    entries, chosen, only = _to_run(held, names, columns, added)
    given = {"--methods": ",".join(listed(methods)), "--federations": ",".join(listed(federations)), "--base": base}
    words = ["--subset"] if subset else [word for flag, value in given.items() if value for word in (flag, value)]
    words += [word for method in added for word in ("--add", method)]
    command = shlex.join(["coterie", "leaderboard", *words, "--seeds", str(seeds), "--out", out])

    about = about_this_run(command, held.about if held else None)

    def keep(board: Board) -> None:
        board.about = about
        board.write(folder / FILE)

    board = run_board(
        chosen,
        entries,
        held.seeds if held else range(seeds),
        folder,
        base=held,
        only=only,
        data_dir=data_dir,
        workers=workers,
        log=log,
        keep=keep,
    )
    keep(board)
    write_pages(board, folder)
    log(f"results: {folder}")
