"""The command that repeats the papers' tables and figures."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from coterie.cli.terminal import make_console
from coterie.recipes import Study, list_recipes
from coterie.recipes import reproduce as cook


@click.command()
@click.argument("name", required=False)
@click.option(
    "--scale", type=click.Choice(["quick", "full"]), default="quick", help="minutes here, or the paper's size"
)
@click.option("--seeds", type=click.IntRange(min=1), default=1, help="how many seeds", show_default=True)
@click.option("--first-seed", type=click.IntRange(min=0), default=0, help="the first of them", show_default=True)
@click.option("--out", default=None, help="folder for cells and results (default: runs/NAME-SCALE)", metavar="VALUE")
@click.option("--data-dir", default=None, help="where data sets lie (default: COTERIE_DATA)", metavar="VALUE")
@click.option("--workers", default="auto", help="worker processes, or 'auto'", metavar="VALUE")
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def reproduce(
    name: str | None,
    scale: str,
    seeds: int,
    first_seed: int,
    out: str | None,
    data_dir: str | None,
    workers: str,
    quiet: bool,
) -> None:
    """Repeat a paper's table or figure; without NAME, list them. Stopped, it goes on where it was."""
    console = make_console(stderr=True)
    if name is None:
        table = Table("recipe", "what it repeats", box=None, pad_edge=False)
        for known in list_recipes():
            table.add_row(known.name, known.summary)
        make_console().print(table)
        return
    folder = Path(out) if out else Path("runs") / f"{name}-{scale}"
    study = Study(
        folder,
        scale="full" if scale == "full" else "quick",
        seeds=seeds,
        first_seed=first_seed,
        data_dir=data_dir,
        workers=int(workers) if workers.isdigit() else workers,
        say=(lambda text: None) if quiet else (lambda text: console.print(text, highlight=False, markup=False)),
    )
    cook(name, study)
    if not quiet:
        click.echo((folder / "table.md").read_text())
        click.echo(f"results: {folder}")
