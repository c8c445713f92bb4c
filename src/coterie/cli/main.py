"""The command `coterie`: its subcommands, and one-line errors for bad input, never a traceback."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import click

from coterie import __version__
from coterie.cli.extra_commands import CommandGroup, LazyCommand
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

OUT_OF_MEMORY = "can't allocate memory"
"""Words of torch's own error, which has no type of its own."""
EXIT_BAD_INPUT = 2
EXIT_BUG = 1
EXIT_INTERRUPTED = 130


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
