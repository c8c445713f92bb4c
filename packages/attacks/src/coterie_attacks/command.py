"""The command that puts hostile clients into a simulation and reports what they cost the honest ones."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import click

from coterie.cli.options import examples
from coterie.errors import ConfigError
from coterie.methods import split_outside_brackets
from coterie.runs import make_config
from coterie_attacks.attacks import ATTACKS
from coterie_attacks.frontier import EXPECTED, as_markdown, attack_table
from coterie_studies import Cells


def _names(text: str) -> list[str]:
    """The parts between semicolons or, where there are none, between commas."""
    parts = text.split(";") if ";" in text else split_outside_brackets(text)
    return [part.strip() for part in parts if part.strip()]


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{name}={text!r}: expected whole numbers with commas between") from None


@click.command(
    epilog=examples(
        "coterie attack --methods 'fedavg;ifca:k=4' --hostile 1,3 --rounds 40",
        "coterie attack --attacks none,alie --rules 'mean,trimmed-mean(1),expected' --cells cells --out table.md",
    )
)
@click.option("--methods", default="fedavg", help="methods; with options of their own, between semicolons")
@click.option("--attacks", default=",".join(ATTACKS), help=f"any of {', '.join(ATTACKS)}", show_default=False)
@click.option(
    "--rules", default="mean", help=f"as --aggregate of 'coterie run' takes them, or {EXPECTED}: by --expect-hostile"
)
@click.option("--hostile", default="1,3", help="numbers of hostile clients")
@click.option("--scenarios", default="digits-permuted", help="named federations; between semicolons")
@click.option("--clients", default=20, help="number of clients")
@click.option("--samples", default=None, type=int, help="training samples per client (default: the scenario's)")
@click.option("--rounds", default=None, type=int, help="communication rounds (default: the scenario's)")
@click.option("--lr", default=None, type=float, help="step size (default: the scenario's)")
@click.option("--participation", default=None, type=float, help="share of the clients in a round (default: all)")
@click.option("--model", default=None, help="as in 'coterie run'")
@click.option("--seeds", default="0", help="seeds; the table shows means over them")
@click.option("--clip", default=None, help="as in 'coterie run'")
@click.option("--weight-cap", default=None, type=float, help="as in 'coterie run'")
@click.option("--cells", default=None, help="folder of finished runs, which are not done again (default: none is kept)")
@click.option("--workers", default=1, help="runs at once")
@click.option("--out", default=None, help="file for the table: Markdown, or JSON if it ends in .json")
def attack(
    methods: str, attacks: str, rules: str, hostile: str, scenarios: str, seeds: str, cells: str | None, workers: int,
    out: str | None, **options: Any,
) -> None:  # fmt: skip
    """Run methods with hostile clients under rules of aggregation."""
    given = {key: value for key, value in options.items() if value is not None}
    given |= {"evaluate_every": 10**6, "workers": 1}
    make_config(given)  # so that a bad value fails before any run
    with tempfile.TemporaryDirectory() as unkept:
        kept = Cells(Path(cells or unkept), workers=workers, log=lambda text: click.echo(text, err=True))
        found = attack_table(
            given, _names(scenarios), _names(methods), _names(attacks), _names(rules), _numbers("hostile", hostile),
            _numbers("seeds", seeds), kept,
        )  # fmt: skip
    table = as_markdown(found)
    if out:
        rows = [dataclasses.asdict(result) for result in found]
        Path(out).write_text(json.dumps(rows, indent=1) if out.endswith(".json") else table, encoding="utf-8")
    click.echo(table)
