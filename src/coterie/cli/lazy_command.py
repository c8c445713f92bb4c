"""A command that is imported when it is used, so that `coterie --help` imports none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click


class LazyCommand(click.Command):
    """Stands for the command that `load` gives; `summary` is the first sentence of its help."""

    def __init__(self, name: str, summary: str, load: Callable[[], click.Command]) -> None:
        super().__init__(name, short_help=summary)
        self.load = load

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The loaded command's context, so that its own options, help and code are used from here on."""
        return self.load().make_context(info_name, args, parent, **extra)
