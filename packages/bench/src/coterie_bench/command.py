"""The command `coterie bench`."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from coterie.engines import available_cores
from coterie_bench import ENTRIES, BenchOptions, find_entries, run_bench
from coterie_bench.table import HEAD, cells

PIPE_WIDTH = 140
"""Columns of a table that goes to a file or a pipe."""
EXAMPLES = """\b
Examples:
  coterie bench --list
  coterie bench w3 overhead
  coterie bench --scale full --out runs/bench --resume
"""


@click.command(epilog=EXAMPLES)
@click.argument("names", nargs=-1)
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="repetitions of every round")
@click.option(
    "--scale",
    type=click.Choice(["quick", "full"]),
    default="quick",
    show_default=True,
    help="a tenth of the clients, or the sizes for which the limits are stated (an hour or more)",
)
@click.option(
    "--out", default=None, help="folder for table.md and bench.json (default: runs/bench-SCALE)", metavar="DIR"
)
@click.option("--workers", type=click.IntRange(min=1), default=None, help="worker processes (default: one per core)")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="seed of data and models")
@click.option("--bf16", is_flag=True, help="time bfloat16 even where the processor has no such instructions")
@click.option("--one-thread", is_flag=True, help="time the plain loop with one thread too")
@click.option("--resume", is_flag=True, help="reuse rows that the folder holds from the same options")
@click.option("--list", "listing", is_flag=True, help="list the rows and their limits, and measure nothing")
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def bench(
    names: tuple[str, ...],
    repeat: int,
    scale: str,
    out: str | None,
    workers: int | None,
    seed: int,
    bf16: bool,
    one_thread: bool,
    resume: bool,
    listing: bool,
    quiet: bool,
) -> None:
    """Time rounds of the papers' workloads against the plain loop; NAMES are rows, by default all of them."""
    chosen = find_entries(names)
    console = wide_console()
    if listing:
        listed = [("row", "workload", "limits on 2 cores")]
        listed += [(entry.name, entry.title, "; ".join(entry.must)) for entry in chosen]
        widths = [max(len(each[i]) for each in listed) for i in (0, 1)]
        for name, title, limits in listed:
            click.echo(f"{name:<{widths[0]}}  {title:<{widths[1]}}  {limits}")
        return
    folder = Path(out) if out else Path("runs") / f"bench-{scale}"
    options = BenchOptions(
        scale="full" if scale == "full" else "quick",
        repeat=repeat,
        seed=seed,
        workers=workers or available_cores(),
        bf16=bf16,
        one_thread=one_thread,
        log=(lambda text: None) if quiet else (lambda text: click.echo(text, err=True)),
    )
    results = run_bench(chosen, options, folder, resume=resume)
    if quiet:
        return
    table = Table(*HEAD, pad_edge=False)
    for name, finding in results["rows"].items():
        for row in cells(name, finding):
            table.add_row(*row)
    console.print(table)
    click.echo(f"results: {folder} ({len(chosen)} of {len(ENTRIES)} rows)")


def wide_console() -> Console:
    """A console as wide as the terminal, or wide enough for the tables where there is none."""
    console = Console(highlight=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(highlight=False, width=PIPE_WIDTH)
