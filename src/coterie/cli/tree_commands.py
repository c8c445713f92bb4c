"""Commands about CFL's parameter tree: print it, place newcomers in it, and ask whether clients are congruent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from coterie.cli.progress import Progress
from coterie.cli.run_commands import config_options
from coterie.cli.terminal import make_console
from coterie.data.folders import client_from_npz, federation_from_npz
from coterie.federation import Federation
from coterie.methods.tree import Node, describe
from coterie.runs.config import make_config
from coterie.runs.diagnosis import diagnose as examine
from coterie.runs.folder import RunFolder
from coterie.runs.trees import load_tree


@click.command()
@click.argument("folder")
@click.option("--client", default=None, help="show only the path of this client", metavar="ID")
def tree(folder: str, client: str | None) -> None:
    """Print the parameter tree of a CFL run."""
    found = load_tree(folder).tree
    console = make_console()
    if client is not None:
        for depth, node in enumerate(found.path(found.leaf_of(client))):
            console.print("  " * depth + describe(node), markup=False, soft_wrap=True)
        return
    run = RunFolder(Path(folder))
    accuracy = (
        {row["client"]: row["accuracy"] for row in run.read_json("clients.json")} if run.has("clients.json") else {}
    )

    def score(node: Node) -> str:
        known = [accuracy[member] for member in node.members if accuracy.get(member) is not None]
        return f", accuracy {sum(known) / len(known):.3f}" if known and not node.children else ""

    for line in found.lines(score):
        console.print(line, markup=False, soft_wrap=True)


@click.command()
@click.argument("folder")
@click.option("--data", required=True, help="a newcomer's .npz file, or a folder of them", metavar="PATH")
def assign(folder: str, data: str) -> None:
    """Place newcomers in the tree of a CFL run, without moving anybody else (Algorithm 4)."""
    known, path = load_tree(folder), Path(data)
    everything = (1.0, 0.0, 0.0)
    newcomers = (
        federation_from_npz(path, splits=everything)
        if path.is_dir()
        else Federation([client_from_npz(path, everything)], name=path.name)
    )
    table = Table("client", "cluster", "path", "with", box=None, pad_edge=False)
    for client, leaf in known.place(newcomers).items():
        steps = " → ".join(str(node.id) for node in known.tree.path(leaf))
        table.add_row(client, str(leaf.id), steps, f"{len(leaf.members)} clients")
    make_console().print(table)


@click.command()
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
