"""Commands about data: which scenarios there are, which data sets are present, how to get the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from coterie.cli.options import examples, run_option
from coterie.cli.terminal import make_console
from coterie.data.fetch import fetch
from coterie.data.scenarios import list_scenarios
from coterie.data.sources import available, data_folder
from coterie.errors import ConfigError
from coterie.federation.checking import Finding, check_tables, merge
from coterie.federation.corrections import CORRECTIONS
from coterie.snapshot import write_atomically

EXIT_PROBLEMS = 2
"""What `coterie check` exits with where it finds problems, as other commands do on bad input."""


@click.command(epilog=examples("coterie scenarios", "coterie run --scenario digits-rotated --clients 40"))
def scenarios() -> None:
    """List the named federations, with their default sizes."""
    table = Table(
        Column("scenario", no_wrap=True), "clients", "rounds", "model", "what it is", box=None, pad_edge=False
    )
    for scenario in list_scenarios():
        defaults = scenario.defaults
        table.add_row(scenario.name, str(scenario.clients), str(defaults.rounds), defaults.model, scenario.summary)
    make_console().print(table)


@click.command(
    epilog=examples(
        "coterie check 'sites/*.csv' --label ill", "coterie check 'sites/*.csv' --label ill --fix sites.toml"
    )
)
@click.argument("tables", metavar="DATA")
@run_option("label")
@run_option("client_column")
@run_option("drop")
@click.option("--fix", default=None, help="write the remedies there, for --data  [default: none]", metavar="FILE.toml")
def check(tables: str, label: str | None, client_column: str | None, drop: str | None, fix: str | None) -> None:
    """Find the faults of tables before training: units, spellings, identifiers.

    The tables stay as they are. `coterie run --data FILE.toml` reads them with the remedies that --fix has written.
    """
    if fix is not None:
        _check_fix(fix, tables)
    found = check_tables(tables, label, client_column, (drop or "").split(","))
    for finding in sorted(found, key=lambda finding: not finding.problem):
        click.echo(f"{'problem' if finding.problem else 'worth a look'}: {finding}")
    problems = sum(finding.problem for finding in found)
    count = f"{problems} {'problem' if problems == 1 else 'problems'}"
    click.echo(f"{count}{'' if label else ' (labels are checked with --label)'}")
    if fix is not None:
        _write_remedies(found, tables, Path(fix))
        click.echo(f"{fix}: train with coterie run --data {fix}")
    elif problems:
        sys.exit(EXIT_PROBLEMS)


def _check_fix(fix: str, tables: str) -> None:
    if Path(fix).suffix.lower() != CORRECTIONS:
        raise ConfigError(f"--fix {fix}: expected a file that ends in {CORRECTIONS}")
    if Path(tables).suffix.lower() == CORRECTIONS:
        raise ConfigError(f"--fix goes with the tables themselves, and {tables} already corrects some: edit it")


def _write_remedies(found: Sequence[Finding], tables: str, path: Path) -> None:
    """The remedies as a file of corrections, each said in a comment."""
    where = os.path.relpath(tables, path.absolute().parent)
    comments = [str(finding) for finding in found if finding.changes]
    write_atomically(path, merge(found, where).to_toml(comments).encode())


@click.group(invoke_without_command=True, epilog=examples("coterie data list", "coterie data fetch mnist"))
@click.pass_context
def data(context: click.Context) -> None:
    """See which data sets are here, and download the others."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@data.command("list", epilog=examples("coterie data list", "coterie data list --data-dir /data"))
@run_option("data_dir")
def list_data(data_dir: str | None) -> None:
    """Show what is there and what is not."""
    console = make_console()
    table = Table("data set", "here", "where, or what is missing", "source, licence", box=None, pad_edge=False)
    for row in available(data_dir):
        table.add_row(row.name, "yes" if row.present else "no", row.detail, row.terms)
    console.print(f"data folder: {data_folder(data_dir)}")
    console.print(table)
    console.print("Download one with: coterie data fetch NAME")


@data.command("fetch", epilog=examples("coterie data fetch mnist", "coterie data fetch cifar10 --data-dir /data"))
@click.argument("name")
@run_option("data_dir")
def fetch_data(name: str, data_dir: str | None) -> None:
    """Download a data set from its public address, check it and unpack it."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=make_console(stderr=True),
    )
    tasks: dict[str, TaskID] = {}

    def show(label: str, done: int, total: int | None) -> None:
        progress.start()  # only now: an unknown name fails with a one-line error, without an empty bar
        if label not in tasks:
            tasks[label] = progress.add_task(label, total=total)
        progress.update(tasks[label], completed=done, total=total)

    try:
        fetch(name, data_folder(data_dir), progress=show)
    finally:
        if tasks:
            progress.stop()
    click.echo(f"{name}: ready in {data_folder(data_dir)}")
