"""The command that puts hostile clients into a simulation and tells what they cost the honest ones."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from coterie.cli.options import examples
from coterie.errors import ConfigError
from coterie.methods import split_outside_brackets
from coterie.runs import make_config
from coterie_attacks.attacks import ATTACKS, AttackResult, as_markdown, attack_table


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
        "coterie attack --attacks none,scale,little --rules 'mean,trimmed-mean(1)' --out table.md",
    )
)
@click.option("--methods", default="fedavg", help="methods; with options of their own, between semicolons")
@click.option("--attacks", default=",".join(ATTACKS), help=f"any of {', '.join(ATTACKS)}", show_default=False)
@click.option("--rules", default="mean", help="rules of aggregation, as --aggregate of 'coterie run' takes them")
@click.option("--hostile", default="1,3", help="numbers of hostile clients")
@click.option("--scenario", default="digits-permuted", help="named federation")
@click.option("--clients", default=20, help="number of clients")
@click.option("--samples", default=None, type=int, help="training samples per client (default: the scenario's)")
@click.option("--rounds", default=None, type=int, help="communication rounds (default: the scenario's)")
@click.option("--lr", default=None, type=float, help="step size (default: the scenario's)")
@click.option("--participation", default=None, type=float, help="share of the clients in a round (default: all)")
@click.option("--model", default=None, help="as in 'coterie run'")
@click.option("--seeds", default="0", help="seeds; the table shows means over them")
@click.option("--clip", default=None, help="as in 'coterie run'")
@click.option("--weight-cap", default=None, type=float, help="as in 'coterie run'")
@click.option("--out", default=None, help="file for the table: Markdown, or JSON if it ends in .json")
def attack(
    methods: str, attacks: str, rules: str, hostile: str, seeds: str, out: str | None, **options: Any,
) -> None:  # fmt: skip
    """Run methods with hostile clients, under one or several rules of aggregation, and write a table."""
    given = {key: value for key, value in options.items() if value is not None}
    config = make_config(given | {"evaluate_every": 10**6})

    def tell(result: AttackResult) -> None:
        click.echo(
            f"{result.method}  {result.rule}  {result.attack}  {result.hostile} hostile  {100 * result.accuracy:.1f} %",
            err=True,
        )

    found = attack_table(
        config, _names(methods), _names(attacks), _names(rules), _numbers("hostile", hostile), _numbers("seeds", seeds),
        tell,
    )  # fmt: skip
    table = as_markdown(found)
    if out:
        rows = [dataclasses.asdict(result) for result in found]
        Path(out).write_text(json.dumps(rows, indent=1) if out.endswith(".json") else table, encoding="utf-8")
    click.echo(table)
