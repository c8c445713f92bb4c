"""The command that compares methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.cli.options import RunCommand, complete_method, config_options, examples
from coterie.errors import ConfigError
from coterie.runs import make_config, new_folder
from coterie_studies import tables
from coterie_studies.budgets import BUDGETS
from coterie_studies.compared import Comparison, write_tables
from coterie_studies.comparison import run_methods, split_methods
from coterie_studies.differences import TESTS

FILE_WIDTH = 110
"""Columns that the table may take where no terminal says how wide it is."""


@click.command(
    cls=RunCommand,
    epilog=examples(
        "coterie compare --methods fedavg,local,cfl,ifca:k=4 --scenario digits-permuted --seeds 5 --baseline fedavg",
        "coterie compare --methods fedavg --methods ifca:k=2,init=k-means++ --data FOLDER --workers 4",
        "coterie compare --methods flt --out runs/FOLDER --latex table.tex --pdf curves.pdf",
    ),
)
@click.option("--methods", multiple=True, required=True, metavar="LIST", help="methods, e.g. fedavg,local,cfl,ifca:k=4")
@click.option(
    "--seeds", default=1, show_default=True, type=click.IntRange(min=1), help="how many seeds, from --seed on"
)
@click.option("--baseline", metavar="METHOD", help="method to measure the others against  [default: the best]",
              shell_complete=complete_method)  # fmt: skip
@click.option("--test", default="t", show_default=True, type=click.Choice(TESTS),
              help="paired t test, or Wilcoxon's signed ranks")  # fmt: skip
@click.option("--equal", default="rounds", show_default=True, type=click.Choice(BUDGETS),
              help="budget that is held; without --max-bytes or --max-passes, the first method's")  # fmt: skip
@click.option("--latex", metavar="FILE", help="write the table for a paper, too (booktabs)")
@click.option("--pdf", metavar="FILE", help="write the figures for a paper, too, one per page")
@config_options(leave_out=frozenset({"method"}))
def compare(
    methods: tuple[str, ...],
    seeds: int,
    baseline: str | None,
    test: str,
    equal: str,
    latex: str | None,
    pdf: str | None,
    **given: Any,
) -> None:
    """Run several methods on one federation with one budget, and compare them.

    In --methods, commas separate methods and also the options of one: a part with '=' before any ':' belongs to the
    method before it, as in fedavg,ifca:k=4,init=random,cfl. The option may also be given several times. Several runs go
    at once (--workers of them, each on one core). With --equal bytes or passes a run ends when the budget is spent. The
    same command again goes on where it was stopped. Into a folder that holds a comparison, --out adds: other methods'
    rows stay, and options that are not given are the folder's.
    """
    values = {key: value for key, value in given.items() if value is not None}
    config = make_config(values)
    for option, file in (("--latex", latex), ("--pdf", pdf)):
        if file is not None:
            check_target(option, Path(file))
    place = Path(config.out) if config.out else new_folder(config, "compared")
    progress = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        if not config.quiet:
            progress.print(escape(text), soft_wrap=True)

    options = {key: value for key, value in values.items() if key not in {"out", "workers", "quiet"}}
    table = run_methods(
        split_methods(methods),
        out=place,
        seeds=seeds,
        workers=config.workers,
        baseline=baseline,
        test=test,
        equal=equal,
        say=say,
        **options,
    )
    write_tables(place, table)
    found = Comparison(place, table)
    written = [found.write_latex(latex)] if latex is not None else []
    written += [found.write_pdf(pdf)] if pdf is not None else []
    if config.quiet:
        return
    show_comparison(found)
    for target in written:
        click.echo(f"written: {target}")


def check_target(option: str, path: Path) -> None:
    """Refuse a file that could not be written, before hours of training."""
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}: make it first")


def show_comparison(found: Comparison) -> None:
    """Print the table, the paired differences, what they are, and what failed."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    table = found.table

    def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> None:
        shown = Table(box=None, pad_edge=False)
        for i, title in enumerate(titles):
            shown.add_column(title, justify="right" if i else "left", overflow="fold", no_wrap=title == tables.RATE)
        for row in rows:
            shown.add_row(*map(escape, row))
        console.print(shown)
        console.print(escape(caption), soft_wrap=True)

    print_table(tables.columns(table), tables.cells(table), tables.caption(table))
    for method, text in tables.problems(table):
        console.print(f"[yellow]{escape(method)}[/]: {escape(text)}", soft_wrap=True)
    if titles := tables.difference_columns(table):
        console.print()
        print_table(titles, tables.difference_cells(table), tables.difference_caption(table))
    place = escape(str(found.path))
    console.print(f"results: {place}; look at them with 'coterie report {place}'", soft_wrap=True)
