"""The command that prints the tree of splits."""

from __future__ import annotations

from pathlib import Path

import click

from coterie.cli.options import complete_folder, examples
from coterie.cli.terminal import make_console
from coterie.errors import RunError
from coterie.runs.folder import RunFolder
from coterie.runs.records import TreeNode, tree_of
from coterie.runs.words import describe, path_to, served_elsewhere


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
