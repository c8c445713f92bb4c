"""The commands `coterie report`, `plot` and `serve`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from coterie.cli.options import complete_folder, examples
from coterie.errors import extra

BASELINE = "a finished run to measure each client's gain against  [default: none]"


@click.command(epilog=examples("coterie report runs/rotated", "coterie report runs/cfl --baseline runs/fedavg"))
@click.argument("folder", shell_complete=complete_folder)
@click.option("--out", default=None, help="the file to write  [default: report.html in the folder]", metavar="FILE")
@click.option("--baseline", default=None, help=BASELINE, metavar="FOLDER", shell_complete=complete_folder)
def report(folder: str, out: str | None, baseline: str | None) -> None:
    """Write a report of a run or a comparison: one HTML file that needs no network."""
    from coterie_views.report import write_report

    click.echo(write_report(folder, out, baseline=baseline))


@click.command(epilog=examples("coterie plot runs/rotated --out figures"))
@click.argument("folder", shell_complete=complete_folder)
@click.option("--out", required=True, help="the folder for the pictures", metavar="FOLDER")
@click.option("--baseline", default=None, help=BASELINE, metavar="FOLDER", shell_complete=complete_folder)
def plot(folder: str, out: str, baseline: str | None) -> None:
    """Draw the figures of a run or a comparison as PNG and SVG."""
    from coterie_views.report import write_plots

    for file in write_plots(folder, out, baseline=baseline):
        click.echo(file)


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
        from coterie_views.live import server
    # Where interrupts are ignored, as under nohup, the server ends by itself without raising one.
    with suppress(KeyboardInterrupt):
        server.serve(Path(directory), host, port, lambda address: click.echo(f"open {address}  (Ctrl-C ends)"))
    click.echo("ended; the runs go on without it")
