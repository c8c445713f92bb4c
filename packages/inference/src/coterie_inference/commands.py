"""The commands `coterie predict`, `evaluate`, `export` and `assign`."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from rich.table import Table

from coterie.cli.options import complete_folder, examples
from coterie.cli.terminal import make_console
from coterie.errors import ConfigError
from coterie.runs import Result, load, write_atomically
from coterie.runs.records import tree_of
from coterie.runs.words import ancestors
from coterie_inference.newcomers import lacking_labels
from coterie_inference.predicting import shape_of
from coterie_inference.samples import read_newcomers

Command = TypeVar("Command", bound=Callable[..., None])


def of_client_or_cluster(command: Command) -> Command:
    """The options that say whose model is used."""
    client = click.option(
        "--client", default=None, help="the client whose model is used  [default: none]", metavar="ID"
    )
    cluster = click.option(
        "--cluster",
        default=None,
        type=int,
        help="the cluster whose model is used  [default: the only one]",
        metavar="N",
    )
    return client(cluster(command))


@click.command(
    epilog=examples(
        "coterie predict runs/cfl new.csv --client hospital-3 --out predictions.csv",
        "coterie predict runs/cfl new.npz --cluster 1 --probabilities",
    )
)
@click.argument("folder", shell_complete=complete_folder)
@click.argument("data")
@of_client_or_cluster
@click.option("--probabilities", is_flag=True, help="write a probability of every class too")
@click.option("--out", default=None, help="the CSV file to write  [default: print it]", metavar="FILE")
def predict(
    folder: str, data: str, client: str | None, cluster: int | None, probabilities: bool, out: str | None
) -> None:
    """Predict with a client's model, or a cluster's: one line of CSV per sample.

    DATA is a table for a run on tables, an image or a folder of images, or a .npz or .npy file.
    """
    result = load(folder)
    found = result.predict(data, client=client, cluster=cluster)
    columns = {"prediction": found}
    if found.ndim > 1:  # several targets per sample, or a sequence of them
        columns = {f"prediction-{j}": column for j, column in enumerate(found.reshape(len(found), -1).T)}
    if probabilities:
        chances = result.predict(data, client=client, cluster=cluster, probabilities=True)
        names = shape_of(result).label_names or range(chances.shape[-1])
        columns |= {f"p({name})": chances[..., j] for j, name in enumerate(names)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    if out is None:
        click.echo(text.getvalue(), nl=False)
        return
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(Path(out), text.getvalue().encode())
    click.echo(f"{len(found)} predictions: {out}")


@click.command(
    epilog=examples(
        "coterie evaluate runs/cfl new.csv --client hospital-3",
        "coterie evaluate runs/cfl new.npz --cluster 1 --metrics auc,f1",
    )
)
@click.argument("folder", shell_complete=complete_folder)
@click.argument("data")
@of_client_or_cluster
@click.option(
    "--metrics", default=None, help="further metrics, as NAME,NAME  [default: those of the run]", metavar="LIST"
)
def evaluate(folder: str, data: str, client: str | None, cluster: int | None, metrics: str | None) -> None:
    """Measure a client's model, or a cluster's, on new labelled data."""
    found = load(folder).evaluate(
        data, client=client, cluster=cluster, metrics=None if metrics is None else metrics.split(",")
    )
    table = Table("metric", "value", box=None, pad_edge=False)
    for name, value in found.items():
        table.add_row(name, f"{value:.6g}")
    make_console().print(table)


@click.command(
    epilog=examples(
        "coterie export runs/cfl model.pt --client hospital-3",
        "coterie export runs/cfl model.onnx --cluster 1",
    )
)
@click.argument("folder", shell_complete=complete_folder)
@click.argument("path")
@of_client_or_cluster
@click.option(
    "--format",
    default=None,
    type=click.Choice(["state_dict", "torchscript", "onnx"]),
    help="how the model is written  [default: as the path ends: .onnx, .ts, .pt, .safetensors]",
)
def export(folder: str, path: str, client: str | None, cluster: int | None, format: str | None) -> None:
    """Write a client's model, or a cluster's, as a file that needs no Coterie.

    What the model takes and answers is written beside it, to PATH.json, and a model card to PATH.md.
    """
    click.echo(load(folder).export(path, client=client, cluster=cluster, format=format))


@click.command(
    epilog=examples(
        "coterie assign runs/cfl new.npz",
        "coterie assign runs/cfl --data FOLDER",
        "coterie assign runs/cfl march.csv --client hospital-3",
    )
)
@click.argument("folder", shell_complete=complete_folder)
@click.argument("given", required=False, metavar="[DATA]")
@click.option("--data", default=None, help="the data, as [DATA]  [default: none]", metavar="PATH")
@click.option(
    "--client", default=None, help="ask of this client of the run whether it still fits  [default: none]", metavar="ID"
)
def assign(folder: str, given: str | None, data: str | None, client: str | None) -> None:
    """Place newcomers in the clusters of a run by its own method.

    DATA is a newcomer's file (.npz, or a table for a run on tables) or a folder of such files. Where labels are missing
    and the method needs them, inputs are compared with those of the run's clients. With --client it is new data of a
    client that the run knows, and the answer is whether the client still fits its cluster.
    """
    source = given or data
    if source is None or (given and data):
        raise ConfigError(
            "assign takes one DATA, a newcomer's file or a folder of files: give it after the run's folder"
        )
    result, console = load(folder), make_console()
    if client is not None:
        console.print(str(result.drift(client, source)), markup=False, soft_wrap=True, highlight=False)
        return
    if not lacking_labels(result, read_newcomers(source, shape_of(result))):
        console.print(places(result, result.assign(source)))
        return
    for fit in result.fits(source).values():
        console.print(str(fit), markup=False, soft_wrap=True, highlight=False)


def places(result: Result, clusters: dict[str, int]) -> Table:
    """The newcomers' clusters, each with its path in the tree and the clients that are in it."""
    members = Counter(row.cluster for row in result.clients)
    nodes = {node.id: node for node in tree_of(result.history)}
    table = Table("client", "cluster", "path", "with", box=None, pad_edge=False)
    for newcomer, cluster in clusters.items():
        steps = " → ".join(str(node.id) for node in ancestors(nodes, cluster)) or str(cluster)
        table.add_row(newcomer, str(cluster), steps, f"{members[cluster]} clients")
    return table
