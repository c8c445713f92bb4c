"""Commands about clusters: print the tree of splits, place newcomers, and ask whether clients are congruent."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from coterie.cli.options import complete_folder, config_options, examples
from coterie.cli.progress import Progress
from coterie.cli.terminal import make_console
from coterie.errors import RunError
from coterie.federation import Federation
from coterie.federation.folders import client_from_npz
from coterie.runs.config import make_config
from coterie.runs.diagnosis import diagnose as examine
from coterie.runs.folder import RunFolder
from coterie.runs.loading import open_run
from coterie.runs.records import TreeNode, assignments, tree_of
from coterie.runs.words import ancestors, describe, path_to


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
    accuracy = {row.client: row.accuracy for row in run.clients()}

    def show(node: TreeNode, depth: int) -> None:
        known = [value for member in node.members if (value := accuracy.get(member)) is not None]
        score = f", accuracy {sum(known) / len(known):.3f}" if known and not node.children else ""
        console.print("  " * depth + describe(node) + score, markup=False, soft_wrap=True)
        for child in node.children:
            show(nodes[child], depth + 1)

    for node in nodes.values():
        if node.parent is None:
            show(node, 0)


@click.command(epilog=examples("coterie assign runs/cfl --data new.npz", "coterie assign runs/cfl --data FOLDER"))
@click.argument("folder", shell_complete=complete_folder)
@click.option("--data", required=True, help="a newcomer's .npz file, or a folder of them", metavar="PATH")
def assign(folder: str, data: str) -> None:
    """Place newcomers in the clusters of a run by its own method, without moving anybody else."""
    run, path = open_run(folder), Path(data)
    everything = (1.0, 0.0, 0.0)
    newcomers = (
        Federation.from_folder(path, splits=everything)
        if path.is_dir()
        else Federation([client_from_npz(path, everything)], name=path.name)
    )
    rounds = run.folder.history()
    members, nodes = Counter(assignments(rounds).values()), {node.id: node for node in tree_of(rounds)}
    table = Table("client", "cluster", "path", "with", box=None, pad_edge=False)
    for client, cluster in run.place(newcomers).items():
        steps = " → ".join(str(node.id) for node in ancestors(nodes, cluster)) or str(cluster)
        table.add_row(client, str(cluster), steps, f"{members[cluster]} clients")
    make_console().print(table)


@click.command(
    epilog=examples("coterie diagnose --data FOLDER", "coterie diagnose --scenario digits-permuted --rounds 40")
)
@config_options(leave_out=frozenset({"method", "out", "evaluate_every"}))
def diagnose(**given: Any) -> None:
    """Are these clients congruent? Train one model, then tell what a split would find, without splitting."""
    config = make_config({key: value for key, value in given.items() if value is not None})
    progress = Progress(quiet=config.quiet)
    with progress:
        found = examine(config, callbacks=[progress])
    console = make_console()
    for line in found.words():
        console.print(line, markup=False, soft_wrap=True)
