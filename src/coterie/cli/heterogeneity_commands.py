"""The command that measures how unlike the others each client's data is, before any training."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from coterie.cli.options import RunCommand, config_options, examples
from coterie.cli.terminal import make_console
from coterie.errors import ConfigError
from coterie.methods import FedAvg
from coterie.methods.heterogeneity import divergences
from coterie.runs.assemble import assemble
from coterie.runs.config import RunConfig, make_config
from coterie.snapshot import write_atomically

NOT_FOR_MEASURING = frozenset(
    {"method", "rounds", "participation", "lr_schedule", "evaluate_every", "out", "quiet"} & set(RunConfig.model_fields)
)
BINS = 10
WIDTH = 40
"""Characters of the longest bar."""


@click.command(
    cls=RunCommand,
    epilog=examples(
        "coterie heterogeneity --scenario digits-dirichlet-quarters",
        "coterie heterogeneity --data FOLDER --layers last --out ranking.csv",
    ),
)
@config_options(leave_out=NOT_FOR_MEASURING)
@click.option("--layers", default="last", show_default=True, metavar="NAMES", help="layers to look at, as NAME,NAME")
@click.option("--out", default=None, metavar="FILE", help="write the ranking to a .json or .csv file  [default: none]")
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def heterogeneity(layers: str, out: str | None, quiet: bool, **given: Any) -> None:
    """Measure how heterogeneous each client is (FedCUAU's CUAU), without training.

    A client with a large CUAU moves the model elsewhere than the clients do together. Only the update of one layer
    leaves a client.
    """
    if out and Path(out).suffix not in {".json", ".csv"}:
        raise ConfigError(f"--out {out}: expected a file that ends in .json or .csv")
    rows, groups = measured(layers, {key: value for key, value in given.items() if value is not None})
    if out:
        write_atomically(Path(out), written(rows, Path(out).suffix).encode())
    if not quiet:
        show(rows, groups)
        if out:
            click.echo(f"written: {out}")


def measured(layers: str, given: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The ranking of the clients, and the hidden group of each where the federation is simulated."""
    run, _ = assemble(make_config(given | {"rounds": 1}), method=FedAvg())
    try:
        values = divergences(run.server, tuple(layers.split(",")) if "," in layers else layers)
        samples = run.server.samples
    finally:
        run.engine.close()
    if missing := sorted(set(samples) - set(values)):
        click.echo(f"left out, their updates are not finite: {', '.join(missing)} (lower --lr)", err=True)
    groups = dict(zip(run.server.clients, run.groups, strict=True)) if run.groups else {}
    return ranking(values, samples), groups


def ranking(values: dict[str, float], samples: dict[str, int]) -> list[dict[str, Any]]:
    """One row per client, the most homogeneous first; ties in the order of the clients."""
    ordered = sorted(values, key=lambda client: values[client])
    return [
        {"rank": i, "client": client, "samples": samples[client], "cuau": values[client]}
        for i, client in enumerate(ordered, start=1)
    ]


def written(rows: Sequence[dict[str, Any]], ending: str) -> str:
    """The rows as the text of a .json or .csv file."""
    if ending == ".json":
        return json.dumps(list(rows), indent=2, ensure_ascii=False) + "\n"
    text = io.StringIO()
    table = csv.DictWriter(text, ["rank", "client", "samples", "cuau"], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def histogram(values: Sequence[float]) -> list[str]:
    """The values in bins of equal width, one line of text each."""
    counts, edges = np.histogram(values, bins=min(BINS, max(1, len(set(values)))))
    longest = max(int(counts.max()), 1)
    return [
        f"{low:10.4g} to {high:<10.4g} {'█' * round(WIDTH * count / longest)} {count}"
        for count, low, high in zip(counts.tolist(), edges[:-1], edges[1:], strict=True)
    ]


def show(rows: Sequence[dict[str, Any]], groups: dict[str, int]) -> None:
    """Print ranking and histogram; a simulated federation's hidden groups beside them, as a check on the measure."""
    console = make_console()
    table = Table("rank", "client", "samples", "CUAU", *(["hidden group"] if groups else []), box=None, pad_edge=False)
    for row in rows:
        hidden = [str(groups[row["client"]])] if groups else []
        table.add_row(str(row["rank"]), row["client"], str(row["samples"]), f"{row['cuau']:.5g}", *hidden)
    console.print(table)
    console.print("\nclients by CUAU", highlight=False)
    for line in histogram([row["cuau"] for row in rows]):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    found = sorted(set(groups.values()))
    for group in found if len(found) > 1 else ():
        own = [row["cuau"] for row in rows if groups[row["client"]] == group]
        console.print(f"hidden group {group}: mean CUAU {np.mean(own):.4g}" if own else "", highlight=False)
