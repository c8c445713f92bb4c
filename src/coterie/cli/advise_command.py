"""The command that probes a federation and says which method to run, with evidence, cost and the next command."""

from __future__ import annotations

import json
from typing import Any

import click

from coterie.cli.options import RunCommand, config_options, examples
from coterie.cli.terminal import make_console
from coterie.runs.advising import advise as probe
from coterie.runs.config import make_config


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
