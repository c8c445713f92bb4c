"""The `coterie` command."""

from coterie.cli.main import main

__all__ = ["main"]
