"""Commands to look at results: compare methods, write a report, draw the figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.cli.options import complete_folder, config_options, examples
from coterie.runs.config import make_config

BASELINE = "a finished run to measure each client's gain against  [default: none]"
FILE_WIDTH = 110
"""Columns that the table may take where no terminal says how wide it is."""


@click.command(
    epilog=examples(
        "coterie compare --methods fedavg,local,cfl,ifca:k=4 --scenario digits-permuted --seeds 5",
        "coterie compare --methods fedavg --methods ifca:k=2,init=k-means++ --data FOLDER --workers 4",
    )
)
@click.option("--methods", multiple=True, required=True, metavar="LIST", help="methods, e.g. fedavg,local,cfl,ifca:k=4")
@click.option(
    "--seeds", default=1, show_default=True, type=click.IntRange(min=1), help="how many seeds, from --seed on"
)
@config_options(leave_out=frozenset({"method"}))
def compare(methods: tuple[str, ...], seeds: int, **given: Any) -> None:
    """Run several methods on the same federation with the same budget, and put them in a table.

    In --methods, commas separate methods and also the options of one: a part with '=' before any ':' belongs to the
    method before it, as in fedavg,ifca:k=4,init=random,cfl. The option may also be given several times. Several runs go
    at once (--workers of them, each on one core). The same command again goes on where it was stopped.
    """
    from coterie.report.tables import as_csv, caption, cells, columns, markdown, problems
    from coterie.runs.api import new_folder
    from coterie.runs.comparison import compare as run_all
    from coterie.runs.comparison import split_methods
    from coterie.snapshot import write_atomically

    values = {key: value for key, value in given.items() if value is not None}
    config = make_config(values)
    place = Path(config.out) if config.out else new_folder(config, "compared")
    progress, console = Console(stderr=True, highlight=False), Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)

    def say(text: str) -> None:
        if not config.quiet:
            progress.print(escape(text), soft_wrap=True)

    options = {key: value for key, value in values.items() if key not in {"out", "workers", "quiet"}}
    found = run_all(split_methods(methods), out=place, seeds=seeds, workers=config.workers, say=say, **options)
    write_atomically(place / "table.md", markdown(found).encode())
    write_atomically(place / "table.csv", as_csv(found).encode())
    if config.quiet:
        return
    shown = Table(box=None, pad_edge=False)
    for i, title in enumerate(columns(found)):
        shown.add_column(title, justify="right" if i else "left", overflow="fold", no_wrap=title == "accuracy %")
    for row in cells(found):
        shown.add_row(*map(escape, row))
    console.print(shown)
    console.print(escape(caption(found)), soft_wrap=True)
    for method, text in problems(found):
        console.print(f"[yellow]{escape(method)}[/]: {escape(text)}", soft_wrap=True)
    console.print(
        f"results: {escape(str(place))}; look at them with 'coterie report {escape(str(place))}'", soft_wrap=True
    )


@click.command(epilog=examples("coterie report runs/rotated", "coterie report runs/cfl --baseline runs/fedavg"))
@click.argument("folder", shell_complete=complete_folder)
@click.option("--out", default=None, help="the file to write  [default: report.html in the folder]", metavar="FILE")
@click.option("--baseline", default=None, help=BASELINE, metavar="FOLDER", shell_complete=complete_folder)
def report(folder: str, out: str | None, baseline: str | None) -> None:
    """Write a report of a run or a comparison: one HTML file that needs no network."""
    from coterie.report import write_report

    click.echo(write_report(folder, out, baseline=baseline))


@click.command(epilog=examples("coterie plot runs/rotated --out figures"))
@click.argument("folder", shell_complete=complete_folder)
@click.option("--out", required=True, help="the folder for the pictures", metavar="FOLDER")
@click.option("--baseline", default=None, help=BASELINE, metavar="FOLDER", shell_complete=complete_folder)
def plot(folder: str, out: str, baseline: str | None) -> None:
    """Draw the figures of a run or a comparison as PNG and SVG."""
    from coterie.report import write_plots

    for file in write_plots(folder, out, baseline=baseline):
        click.echo(file)
