"""Commands that other packages add to `coterie`, by entry points of the group `coterie.commands`.

An entry point's value is a click command. Its package is imported when the command is used, not to list it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint
from itertools import chain
from typing import Any

import click

from coterie import plugins
from coterie.errors import ConfigError

GROUP = "coterie.commands"
OWN_COMMANDS = {
    "reproduce": ("coterie-recipes", "Repeat the papers' tables and figures, our numbers beside theirs."),
    "bench": ("coterie-bench", "Time rounds of the papers' workloads against a plain training loop."),
    "conformance": (
        "coterie-conformance",
        "Check a clustered method for slips of public code, and measure what each does.",
    ),
    "leaderboard": ("coterie-board", "Run all methods on many federations with one budget, and rank them."),
    "compare": ("coterie-studies", "Run several methods on one federation with one budget, and compare them."),
    "sweep": ("coterie-studies", "Search for the method and the options that serve the clients best (Optuna)."),
    "report": ("coterie-views", "Write a report of a run or a comparison: one HTML file that needs no network."),
    "plot": ("coterie-views", "Draw the figures of a run or a comparison as PNG and SVG."),
    "serve": ("coterie-views", "Show the runs in DIR on a live page: rounds, trees, many runs in one picture."),
    "predict": ("coterie-inference", "Predict with a client's model, or a cluster's: one line of CSV per sample."),
    "evaluate": ("coterie-inference", "Measure a client's model, or a cluster's, on new labelled data."),
    "export": ("coterie-inference", "Write a client's model, or a cluster's, as a file that needs no Coterie."),
    "assign": ("coterie-inference", "Place newcomers in the clusters of a run by its own method."),
    "check": ("coterie-tables", "Find the faults of tables before training: units, spellings, identifiers."),
    "attack": ("coterie-attacks", "Run methods with hostile clients under rules of aggregation."),
    "advise": ("coterie-advice", "Probe the clients, and say which method to run and what it costs."),
    "diagnose": ("coterie-advice", "Train one model, and report what a split would find, without splitting."),
    "explain": ("coterie-advice", "Explain why clusters differ: every cluster's model on the others' clients."),
}
"""Commands that come with packages of this repository: the package, and what the command does, in one line."""
SECTIONS = {
    "Train": ("run", "resume", "compare", "sweep", "deploy"),
    "Understand": ("report", "plot", "serve", "tree", "explain"),
    "Use the models": ("predict", "evaluate", "export", "assign"),
    "Before training": ("check", "advise", "diagnose", "heterogeneity", "data", "encoder"),
    "What there is": ("methods", "models", "scenarios"),
    "Methods on trial": ("attack", "bench", "conformance", "leaderboard", "reproduce"),
}
"""The sections of `coterie --help`; commands of other packages come last."""


class LazyCommand(click.Command):
    """Stands for the command that `load` imports when it is used; `summary` is the first sentence of its help."""

    def __init__(self, name: str, summary: str, load: Callable[[], click.Command]) -> None:
        super().__init__(name, short_help=summary)
        self.load = load

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The loaded command's context, so that its own options, help and code are used from here on."""
        return self.load().make_context(info_name, args, parent, **extra)


class CommandGroup(click.Group):
    """The core's commands and those of installed packages; the core's win where names are the same."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_offered(ctx)})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in sections, each with its one line in full."""
        left = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        width = max(map(len, left))
        others = sorted(left.keys() - set(chain.from_iterable(SECTIONS.values())))
        for title, names in {**SECTIONS, "Other packages": others}.items():
            rows = [(name.ljust(width), command.get_short_help_str()) for name in names if (command := left.get(name))]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = _offered(ctx).get(cmd_name)
        return None if point is None else LazyCommand(cmd_name, summary(point), partial(load_command, point))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        missing, _ = OWN_COMMANDS.get(args[0] if args else "", ("", ""))
        if missing and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            raise ConfigError(
                f"'coterie {args[0]}' is a package of its own: pip install {missing} (in a clone of the "
                f"repository: pip install packages/{missing.removeprefix('coterie-')})"
            )
        return super().resolve_command(ctx, args)


def _offered(ctx: click.Context) -> dict[str, EntryPoint]:
    """What installed packages offer; looked up once per call of the command, because all their metadata is read."""
    if GROUP not in ctx.meta:
        ctx.meta[GROUP] = plugins.offered(GROUP)
    found: dict[str, EntryPoint] = ctx.meta[GROUP]
    return found


def summary(point: EntryPoint) -> str:
    """The line of a command of ours, else the one-line description of the package that it belongs to."""
    package, text = OWN_COMMANDS.get(point.name, ("", ""))
    if package == plugins.package(point):
        return text
    said = point.dist.metadata["Summary"] if point.dist is not None else None
    return said or f"Comes from the package {plugins.package(point)}."


def load_command(point: EntryPoint) -> click.Command:
    """The command of another package; ConfigError where the package offers none."""
    loaded = plugins.load(point, "command")
    if not isinstance(loaded, click.Command):
        raise ConfigError(
            f"command {point.name!r}: {point.value} of the package {plugins.package(point)!r} is of type "
            f"{type(loaded).__name__}: expected a click command"
        )
    return loaded
