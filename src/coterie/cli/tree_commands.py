"""Commands about clusters: print the tree of splits, and place newcomers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
from rich.table import Table

from coterie.cli.options import complete_folder, examples
from coterie.cli.terminal import make_console
from coterie.errors import ConfigError, RunError
from coterie.runs.folder import RunFolder
from coterie.runs.loading import load
from coterie.runs.newcomers import lacking_labels
from coterie.runs.records import TreeNode, tree_of
from coterie.runs.result import Result
from coterie.runs.samples import read_newcomers
from coterie.runs.using import shape_of
from coterie.runs.words import ancestors, describe, path_to, served_elsewhere


@click.command(epilog=examples("coterie tree runs/cfl", "coterie tree runs/cfl --client client-03"))
@click.argument("folder", shell_complete=complete_folder)
@click.option(
    "--client", default=None, help="show only the path of this client  [default: the whole tree]", metavar="ID"
)
def tree(folder: str, client: str | None) -> None:
    """Print the tree of clusters that a run's splits made."""
    run = RunFolder(Path(folder))
    run.config()  # a folder that is no run's, or of another format, ends here
    nodes = {node.id: node for node in tree_of(run.history())}
    if not nodes:
        raise RunError(f"{folder}: no cluster was split in this run, so there is no tree")
    console = make_console()
    if client is not None:
        for depth, node in enumerate(path_to(nodes, client)):
            console.print("  " * depth + describe(node), markup=False, soft_wrap=True)
        return
    clients = run.clients()
    accuracy = {row.client: row.accuracy for row in clients}

    def show(node: TreeNode, depth: int) -> None:
        console.print("  " * depth + describe(node, accuracy), markup=False, soft_wrap=True)
        for child in node.children:
            show(nodes[child], depth + 1)

    for node in nodes.values():
        if node.parent is None:
            show(node, 0)
    if elsewhere := served_elsewhere(clients):
        console.print(elsewhere, markup=False, soft_wrap=True)


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
