"""The command `coterie check`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from coterie.cli.options import examples, run_option
from coterie.errors import ConfigError
from coterie.federation.corrections import CORRECTIONS
from coterie.runs import write_atomically
from coterie_tables.checking import check_tables
from coterie_tables.findings import Finding, merge

EXIT_PROBLEMS = 2
"""What `coterie check` exits with where it finds problems, as other commands do on bad input."""


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
    """Refuse a file for the remedies that `--data` would not read as such."""
    if Path(fix).suffix.lower() != CORRECTIONS:
        raise ConfigError(f"--fix {fix}: expected a file that ends in {CORRECTIONS}")
    if Path(tables).suffix.lower() == CORRECTIONS:
        raise ConfigError(f"--fix goes with the tables themselves, and {tables} already corrects some: edit it")


def _write_remedies(found: Sequence[Finding], tables: str, path: Path) -> None:
    """The remedies as a file of corrections, each said in a comment."""
    where = os.path.relpath(tables, path.absolute().parent)
    comments = [str(finding) for finding in found if finding.changes]
    write_atomically(path, merge(found, where).to_toml(comments).encode())
