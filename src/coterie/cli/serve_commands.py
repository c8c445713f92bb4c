"""The command that shows runs in a browser."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from coterie.cli.options import complete_folder, examples
from coterie.errors import extra


@click.command(epilog=examples("coterie serve runs", "coterie serve runs/rotated --port 0"))
@click.argument("directory", metavar="DIR", shell_complete=complete_folder)
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on", metavar="ADDRESS")
@click.option("--port", default=8421, show_default=True, type=int, help="port to listen on; 0 finds a free one")
def serve(directory: str, host: str, port: int) -> None:
    """Show the runs in DIR on a live page: rounds, trees, many runs in one picture.

    DIR is a run's folder or one that holds runs. Nothing is written. On another address than loopback the page asks
    for the token in the address that is printed.
    """
    with extra("web", "coterie serve"):
        from coterie.live import server
    # Where interrupts are ignored, as under nohup, the server ends by itself without raising one.
    with suppress(KeyboardInterrupt):
        server.serve(Path(directory), host, port, lambda address: click.echo(f"open {address}  (Ctrl-C ends)"))
    click.echo("ended; the runs go on without it")
