"""Commands to look at results: write a report, draw the figures."""

from __future__ import annotations

import click

from coterie.cli.options import complete_folder, examples

BASELINE = "a finished run to measure each client's gain against  [default: none]"


@click.command(epilog=examples("coterie report runs/rotated", "coterie report runs/cfl --baseline runs/fedavg"))
@click.argument("folder", shell_complete=complete_folder)
@click.option("--out", default=None, help="the file to write  [default: report.html in the folder]", metavar="FILE")
@click.option("--baseline", default=None, help=BASELINE, metavar="FOLDER", shell_complete=complete_folder)
def report(folder: str, out: str | None, baseline: str | None) -> None:
    """Write a report of a run or a comparison: one HTML file that needs no network."""
    from coterie.report import write_report

    click.echo(write_report(folder, out, baseline=baseline))


@click.command(epilog=examples("coterie plot runs/rotated --out figures"))
@click.argument("folder", shell_complete=complete_folder)
@click.option("--out", required=True, help="the folder for the pictures", metavar="FOLDER")
@click.option("--baseline", default=None, help=BASELINE, metavar="FOLDER", shell_complete=complete_folder)
def plot(folder: str, out: str, baseline: str | None) -> None:
    """Draw the figures of a run or a comparison as PNG and SVG."""
    from coterie.report import write_plots

    for file in write_plots(folder, out, baseline=baseline):
        click.echo(file)
