"""The commands about FLT's encoders: train one on a data set, and look at one."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from coterie.cli.options import examples, run_option
from coterie.data.sources import load_source
from coterie.encoders import load_encoder, pca_encoder, save_encoder, train_encoder
from coterie.errors import ConfigError


@click.group(epilog=examples("coterie encoder train --source emnist --out enc.safetensors", "coterie encoder show pca"))
def encoder() -> None:
    """Train the encoders by which FLT compares clients."""


@encoder.command(
    "train",
    epilog=examples(
        "coterie encoder train --source emnist --out enc.safetensors --epochs 20",
        "coterie run --method flt:encoder=enc.safetensors",
    ),
)
@click.option("--source", required=True, help="data set to learn from (see 'coterie data list')", metavar="NAME")
@click.option("--out", required=True, help="file to write, for example enc.safetensors", metavar="FILE")
@click.option(
    "--kind",
    type=click.Choice(["conv", "pca"]),
    default="conv",
    help="autoencoder or principal axes",
    show_default=True,
)
@click.option("--epochs", type=click.IntRange(min=1), default=10, help="passes over the data", show_default=True)
@click.option("--code", type=click.IntRange(min=1), default=128, help="numbers a code has", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="seed of every random draw", show_default=True)
@run_option("data_dir")
@click.option("--quiet", is_flag=True, help="print nothing but errors")
def train_command(
    source: str, out: str, kind: str, epochs: int, code: int, seed: int, data_dir: str | None, quiet: bool
) -> None:
    """Train an encoder on the images of a data set; its labels are not used."""
    path = Path(out)
    if not path.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {path.parent}: make it first")
    x = load_source(source, data_dir).images()
    console = Console(stderr=True, quiet=quiet)
    if kind == "pca":
        made = pca_encoder(x, code=code)
    else:
        made = train_encoder(
            x,
            code=code,
            epochs=epochs,
            seed=seed,
            say=lambda epoch, loss: console.print(f"epoch {epoch}/{epochs}  error {loss:.5f}", highlight=False),
        )
    save_encoder(made, path, source)
    if not quiet:
        click.echo(f"{out}: {describe(path)}")


@encoder.command("show", epilog=examples("coterie encoder show default", "coterie encoder show enc.safetensors"))
@click.argument("file")
def show_command(file: str) -> None:
    """Say what an encoder is: a file, or one of those in the package (default, pca)."""
    click.echo(describe(file))


def describe(name: str | Path) -> str:
    """An encoder in a few words."""
    made = load_encoder(name)
    shape = "×".join(map(str, made.shape))
    return f"{made.kind}, takes {shape}, gives {made.code} numbers; {len(made.encoding_weights())} numbers to send"
