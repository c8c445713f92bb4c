"""The command `coterie reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from coterie_recipes import Study, list_recipes
from coterie_recipes import reproduce as run_recipe
from coterie_recipes.stored import store as store_results
from coterie_recipes.stored import timed

EXAMPLES = """\b
Examples:
  coterie reproduce
  coterie reproduce cfl-toy --seeds 5
  coterie reproduce ifca-table1-mnist --scale full --data-dir data --out runs/ifca-table1
"""


def count_or_auto(context: click.Context, parameter: click.Parameter, value: str) -> int | Literal["auto"]:
    """A number of processes, or "auto"."""
    if value == "auto":
        return "auto"
    if not value.isdigit() or int(value) < 1:
        raise click.BadParameter(f"{value!r}: give a number of processes, or 'auto'")
    return int(value)


def _repeating(name: str, study: Study) -> str:
    """The command that repeats a study in another folder."""
    words = ["coterie reproduce", name]
    words += ["--scale full"] if study.full else []
    words += [f"--seeds {len(study.seeds)}"] if len(study.seeds) > 1 else []
    words += [f"--first-seed {study.seeds[0]}"] if study.seeds[0] else []
    words += [] if study.workers == "auto" else [f"--workers {study.workers}"]
    return " ".join(words)


@click.command(epilog=EXAMPLES)
@click.argument("name", required=False)
@click.option(
    "--scale",
    type=click.Choice(["quick", "full"]),
    default="quick",
    show_default=True,
    help="a small version that takes minutes, or the paper's size",
)
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="number of seeds")
@click.option("--first-seed", type=click.IntRange(min=0), default=0, show_default=True, help="the first seed")
@click.option("--out", default=None, metavar="DIR", help="folder for cells and results (default: runs/NAME-SCALE)")
@click.option("--data-dir", default=None, metavar="DIR", help="where data sets are (default: COTERIE_DATA)")
@click.option(
    "--workers", callback=count_or_auto, default="auto", show_default=True, metavar="N|auto", help="worker processes"
)
@click.option(
    "--store", default=None, metavar="FILE", help="also write rows, command, commit, machine and time to this JSON file"
)
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def reproduce(
    name: str | None,
    scale: str,
    seeds: int,
    first_seed: int,
    out: str | None,
    data_dir: str | None,
    workers: int | Literal["auto"],
    store: str | None,
    quiet: bool,
) -> None:
    """Repeat a paper's table or figure, our numbers beside theirs; without NAME, list the recipes.

    Every cell is kept in the folder as soon as it is computed: the same command resumes after a stop.
    """
    if name is None:
        known = list_recipes()
        width = max(len(recipe.name) for recipe in known)
        for first, second in [("recipe", "what it repeats"), *((recipe.name, recipe.summary) for recipe in known)]:
            click.echo(f"{first:<{width}}  {second}")
        return
    folder = Path(out) if out else Path("runs") / f"{name}-{scale}"
    study = Study(
        folder,
        scale="full" if scale == "full" else "quick",
        seeds=seeds,
        first_seed=first_seed,
        data_dir=data_dir,
        workers=workers,
        log=(lambda text: None) if quiet else (lambda text: click.echo(text, err=True)),
    )
    with timed(study, name):
        results = run_recipe(name, study)
    if store is not None:
        store_results(results, study, _repeating(name, study), Path(store))
    if not quiet:
        click.echo((folder / "table.md").read_text(encoding="utf-8"))
        click.echo(f"results: {folder}")
