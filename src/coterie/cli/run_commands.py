"""Commands that start and resume runs; what they do is in `running`, so that their help needs no torch."""

from __future__ import annotations

from typing import Any

import click

from coterie.cli.options import RunCommand, complete_folder, config_options, examples
from coterie.options import FIELDS, LIMIT_KEYS, PLACE_KEYS


@click.command(
    cls=RunCommand,
    epilog=examples(
        "coterie run",
        "coterie run --method ifca:k=4 --scenario digits-rotated --seed 1 --out runs/rotated",
        "coterie run --method cfl --data FOLDER --model mlp:hidden=64 --rounds 50",
        "coterie run config.toml --seed 3",
    ),
)
@click.argument("config_file", required=False, metavar="[CONFIG.toml]")
@config_options(defaults={"method": "fedavg, and then auto"})
def run(config_file: str | None, **given: Any) -> None:
    """Train a method on a federation; the command line wins over CONFIG.toml.

    Without a method: auto, which finds out how these clients are served best, beside FedAvg, one model for all. Without
    data too, where there are two cores, both run at the same time, and the progress is auto's.
    """
    from coterie.cli.running import begin

    begin(config_file, {key: value for key, value in given.items() if value is not None})


@click.command(
    cls=RunCommand,
    epilog=examples("coterie resume runs/rotated", "coterie resume runs/rotated --workers 4 --data-dir /data"),
)
@click.argument("folder", shell_complete=complete_folder)
@config_options(leave_out=frozenset(FIELDS) - PLACE_KEYS - LIMIT_KEYS | {"out"})
def resume(folder: str, quiet: bool | None, **given: Any) -> None:
    """Resume a run that was stopped or killed, as if nothing had happened."""
    from coterie.cli.running import proceed

    proceed(folder, bool(quiet), {key: value for key, value in given.items() if value is not None})
