"""The command that searches for the best options."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.cli.options import RunCommand, config_options, examples
from coterie.cli.terminal import make_console

MOST_ROWS = 20
"""Trials that are printed; the file has them all."""


@click.command(
    cls=RunCommand,
    epilog=examples(
        "coterie sweep --search lr=log:0.001:1 --method fedavg --scenario digits-permuted --trials 20",
        "coterie sweep --search method=ifca,cfl --search ifca.k=2:6 --search lr=log:0.01:1 --data FOLDER",
    ),
)
@click.option("--search", "searches", multiple=True, required=True, metavar="KEY=WHAT",
              help="what to search, several times: lr=log:0.001:1, epochs=1:5, batch_size=10,20, method=ifca,cfl, "
              "ifca.k=2:6")  # fmt: skip
@click.option("--trials", default=20, show_default=True, type=click.IntRange(min=1),
              help="points to try in all, those in the folder among them")  # fmt: skip
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(min=1),
              help="runs per trial, from --seed on")  # fmt: skip
@click.option("--objective", metavar="METRIC",
              help="metric to go by, its mean over the clients  [default: accuracy, for regression loss]")  # fmt: skip
@config_options(defaults={"method": "fedavg, or those that are searched"})
def sweep(searches: tuple[str, ...], trials: int, seeds: int, objective: str | None, **given: Any) -> None:
    """Search for the method and the options that serve the clients best (Optuna).

    Every trial is an ordinary run folder under --out. Test data stays unseen: the clients' validation data takes its
    place, or a fifth of the training data where there is none. The same command again goes on where it was stopped, and
    with more --trials goes further.
    """
    from coterie.runs import make_config
    from coterie_studies.search_space import parse_searches
    from coterie_studies.sweeping import sweep as search_all

    values = {key: value for key, value in given.items() if value is not None}
    config = make_config(values)
    progress = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        if not config.quiet:
            progress.print(escape(text), soft_wrap=True)

    # As numbers where they are numbers: text would be another option than what Python gives.
    options = {key: getattr(config, key) for key in values if key not in {"out", "quiet", "method", "model", "workers"}}
    found = search_all(
        parse_searches(searches),
        trials=trials,
        seeds=seeds,
        method=values.get("method"),
        model=values.get("model"),
        objective=objective,
        out=config.out,
        workers=config.workers,
        say=say,
        **options,
    )
    if config.quiet:
        return
    shown = Table(*found.columns(), box=None, pad_edge=False)
    for row in found.cells()[:MOST_ROWS]:
        shown.add_row(*map(escape, row))
    console = make_console()
    console.print(shown)
    if len(found.trials) > MOST_ROWS:
        console.print(f"the best {MOST_ROWS} of {len(found.trials)} trials")
    console.print(f"results: {escape(str(found.path))}", soft_wrap=True)
    console.print(f"best: {escape(found.best_command)}", soft_wrap=True)
