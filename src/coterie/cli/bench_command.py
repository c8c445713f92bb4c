"""The command that measures how fast rounds are here."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from coterie.bench import ENTRIES, Setting, find_entries, run_bench
from coterie.bench.table import HEAD, cells
from coterie.cli.terminal import make_console
from coterie.engines.local import available_cores


@click.command()
@click.argument("names", nargs=-1)
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="repetitions of every round")
@click.option(
    "--scale",
    type=click.Choice(["quick", "full"]),
    default="quick",
    show_default=True,
    help="a tenth of the clients, or all that the requirements speak of (an hour or more)",
)
@click.option(
    "--out", default=None, help="folder for table.md and bench.json (default: runs/bench-SCALE)", metavar="DIR"
)
@click.option(
    "--workers", type=click.IntRange(min=1), default=None, help="worker processes (default: one for each core)"
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="seed of data and models")
@click.option("--bf16", is_flag=True, help="time bfloat16 even where the processor has no such instructions")
@click.option("--one-thread", is_flag=True, help="time the plain loop with one thread too")
@click.option("--resume", is_flag=True, help="keep the rows that the folder has from the same setting")
@click.option("--list", "listing", is_flag=True, help="name the rows and what each must reach, and measure nothing")
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
    """Time rounds of the papers' workloads against the plain loop; NAMES are rows, all of them by default."""
    chosen = find_entries(names)
    if listing:
        table = Table("row", "workload", "must reach on 2 cores", box=None, pad_edge=False)
        for entry in chosen:
            table.add_row(entry.name, entry.title, "; ".join(entry.must))
        make_console().print(table)
        return
    console = make_console(stderr=True)
    folder = Path(out) if out else Path("runs") / f"bench-{scale}"
    setting = Setting(
        scale="full" if scale == "full" else "quick",
        repeat=repeat,
        seed=seed,
        workers=workers or available_cores(),
        bf16=bf16,
        one_thread=one_thread,
        say=(lambda text: None) if quiet else (lambda text: console.print(text, highlight=False, markup=False)),
    )
    results = run_bench(chosen, setting, folder, resume=resume)
    if quiet:
        return
    table = Table(*HEAD, pad_edge=False)
    for name, finding in results["rows"].items():
        for row in cells(name, finding):
            table.add_row(*row)
    make_console().print(table)
    click.echo(f"results: {folder} ({len(chosen)} of {len(ENTRIES)} rows)")
