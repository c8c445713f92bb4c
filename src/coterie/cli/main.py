"""The command `coterie`: its subcommands, those of other packages, and one-line errors for bad input.

Other packages add commands by entry points of the group `coterie.commands`, whose values are click commands. A package
is imported when its command is used, not to list it.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint
from itertools import chain
from typing import Any, NoReturn

import click

from coterie import __version__, plugins
from coterie.errors import ConfigError, CoterieError

COMMANDS = (
    ("run", "run_commands", "Train a method on a federation; the command line wins over CONFIG.toml."),
    ("resume", "run_commands", "Resume a run that was stopped or killed, as if nothing had happened."),
    ("methods", "method_commands", "List the methods; with NAME, the options of one."),
    ("models", "method_commands", "List the networks."),
    ("scenarios", "data_commands", "List the named federations, with their default sizes."),
    ("data", "data_commands", "See which data sets are here, and download the others."),
    ("encoder", "encoder_commands", "Train the encoders by which FLT compares clients."),
    (
        "heterogeneity",
        "heterogeneity_commands",
        "Measure how heterogeneous each client is (FedCUAU's CUAU), without training.",
    ),
    ("tree", "tree_commands", "Print the tree of clusters that a run's splits made."),
    ("deploy", "deploy_commands", "Write a ready Flower app: the app, a file of data per client, the commands."),
)
"""Name, module and first sentence of every command, the same as in its docstring."""

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

OUT_OF_MEMORY = "can't allocate memory"
"""Words of torch's own error, which has no type of its own."""
EXIT_BAD_INPUT = 2
EXIT_BUG = 1
EXIT_INTERRUPTED = 130


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


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="coterie")
@click.pass_context
def app(context: click.Context) -> None:
    """Clustered federated learning: find clusters of clients while training, and give each client the model that fits.

    Every command takes --debug to show where an error came from.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def own_command(module: str, name: str) -> click.Command:
    """A command of this package."""
    found: click.Command = getattr(import_module(f"coterie.cli.{module}"), name)
    return found


for _name, _module, _summary in COMMANDS:
    app.add_command(LazyCommand(_name, _summary, partial(own_command, _module, _name)))


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 fine, 2 bad input, 130 interrupted, 1 a bug of ours."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        with one_line_warnings():
            check_quoted(words)
            app.main(words, prog_name="coterie", standalone_mode=False)
    except BrokenPipeError:
        sys.exit(EXIT_BUG)
    except (Exception, KeyboardInterrupt) as problem:
        message, code = _explained(problem)
        _fail(message, code, debug)


def _explained(problem: BaseException) -> tuple[str, int]:
    """What went wrong in one line, and the code to exit with."""
    match problem:
        case CoterieError():
            return str(problem), EXIT_BAD_INPUT
        case KeyboardInterrupt() | click.Abort():
            return str(problem) or "stopped", EXIT_INTERRUPTED
        case click.ClickException():
            return problem.format_message(), EXIT_BAD_INPUT
        case OSError():
            return _system_error(problem), EXIT_BAD_INPUT
        case RecursionError():
            return "something that was given is nested too deeply: make it flatter", EXIT_BAD_INPUT
    if isinstance(problem, MemoryError) or (isinstance(problem, RuntimeError) and OUT_OF_MEMORY in str(problem)):
        return f"out of memory ({problem}): use a smaller model, fewer workers or --memory", EXIT_BAD_INPUT
    return f"unexpected {type(problem).__name__}: {problem} (--debug shows where)", EXIT_BUG


def _system_error(problem: OSError) -> str:
    """What the system refused, and of which file."""
    names = [os.fsdecode(name) for name in (problem.filename, problem.filename2) if isinstance(name, str | bytes)]
    reason = problem.strerror or str(problem) or type(problem).__name__
    return f"{': '.join([*names, reason])}: check the path, its rights and the room"


def check_quoted(words: list[str]) -> None:
    """Refuse `--data sites/*.csv` without quotes: the shell has put the files' names there, and only one is read."""
    at = words.index("--data") if "--data" in words else len(words)
    files = [word for word in words[at + 1 : at + 3] if word.lower().endswith((".csv", ".tsv", ".parquet", ".pq"))]
    if len(files) == 2:
        raise ConfigError(f"--data {files[0]} {files[1]} …: put the pattern into quotes, as in --data 'sites/*.csv'")


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print warnings that are for the user as one line each, and not again what was said before."""

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, UserWarning):
            click.echo(f"coterie: warning: {' '.join(str(message).split())}", err=True)
        else:
            usual(message, category, *rest, **more)

    with warnings.catch_warnings():
        usual = warnings.showwarning
        warnings.showwarning = show
        yield


def _fail(message: str, code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    click.echo(f"coterie: {' '.join(message.split())}", err=True)
    sys.exit(code)
