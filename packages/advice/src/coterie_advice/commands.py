"""The commands `coterie advise`, `diagnose` and `explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from coterie.cli.options import RunCommand, complete_folder, config_options, examples, run_option
from coterie.cli.progress import Progress
from coterie.cli.terminal import make_console
from coterie.runs import RunFolder, load, make_config
from coterie_advice.advising import advise as probe
from coterie_advice.diagnosis import diagnose as examine
from coterie_inference.known_clients import clients_of


@click.command(
    cls=RunCommand,
    epilog=examples(
        "coterie advise --data FOLDER",
        "coterie advise --data 'sites/*.csv' --label outcome --rounds 80",
        "coterie advise --scenario digits-permuted --json",
    ),
)
@config_options(leave_out=frozenset({"method", "out", "evaluate_every"}))
@click.option("--json", "as_json", is_flag=True, help="print all numbers as JSON")
def advise(as_json: bool, **given: Any) -> None:
    """Probe the clients, and say which method to run and what it costs.

    The probe takes about as long as a few rounds. It looks at training and validation data, never at test data.
    """
    config = make_config({key: value for key, value in given.items() if value is not None})
    progress = make_console(stderr=True)
    quiet = config.quiet or as_json
    found = probe(config, say=lambda text: None if quiet else progress.print(text, markup=False, soft_wrap=True))
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2, ensure_ascii=False))
    else:
        make_console().print(str(found), markup=False, soft_wrap=True)


@click.command(
    cls=RunCommand,
    epilog=examples("coterie diagnose --data FOLDER", "coterie diagnose --scenario digits-permuted --rounds 40"),
)
@config_options(leave_out=frozenset({"method", "out", "evaluate_every"}))
def diagnose(**given: Any) -> None:
    """Train one model, and report what a split would find, without splitting."""
    config = make_config({key: value for key, value in given.items() if value is not None})
    progress = Progress(quiet=config.quiet)
    with progress:
        found = examine(config, callbacks=[progress])
    console = make_console()
    for line in found.words():
        console.print(line, markup=False, soft_wrap=True)


@click.command(epilog=examples("coterie explain runs/cfl", "coterie explain runs/cfl --json"))
@click.argument("folder", shell_complete=complete_folder)
@click.option(
    "--data", default=None, help="where the run's own files lie now  [default: where they were]", metavar="PATH"
)
@run_option("data_dir")
@click.option("--json", "as_json", is_flag=True, help="print all numbers as JSON")
def explain(folder: str, data: str | None, data_dir: str | None, as_json: bool) -> None:
    """Explain why clusters differ: every cluster's model on the others' clients.

    The clients' data must be at hand: the scenario or the files that the run was trained on. What is found is kept in
    the run's folder, and `coterie report` shows it.
    """
    result = load(folder)
    found = result.explain(clients_of(result, data, data_dir))
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2, ensure_ascii=False))
    else:
        make_console().print(str(found), markup=False, soft_wrap=True)
    RunFolder(Path(folder)).write_explanation(found.record())
