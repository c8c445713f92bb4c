"""The command's front door: its subcommands, and the promise that bad input costs one line, never a traceback."""

from __future__ import annotations

import sys
import traceback

import click

from coterie import __version__
from coterie.cli.bench_command import bench
from coterie.cli.data_commands import data, scenarios
from coterie.cli.deploy_commands import deploy
from coterie.cli.encoder_commands import encoder
from coterie.cli.heterogeneity_commands import heterogeneity
from coterie.cli.recipe_commands import reproduce
from coterie.cli.report_commands import compare, plot, report
from coterie.cli.run_commands import methods, models, resume, run
from coterie.cli.serve_commands import serve
from coterie.cli.tree_commands import assign, diagnose, tree
from coterie.errors import CoterieError

EXIT_BAD_INPUT = 2
EXIT_BUG = 1
EXIT_INTERRUPTED = 130


@click.group(
    invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="coterie")
@click.pass_context
def app(context: click.Context) -> None:
    """Clustered federated learning: find the kinds of clients while training, and give each the model that fits.

    Every command takes --debug to show where an error came from.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in (
    run,
    resume,
    compare,
    report,
    plot,
    methods,
    models,
    scenarios,
    data,
    encoder,
    heterogeneity,
    reproduce,
    bench,
    tree,
    assign,
    diagnose,
    serve,
    deploy,
):
    app.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 fine, 2 bad input, 130 interrupted, 1 a bug of ours."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        app.main(words, prog_name="coterie", standalone_mode=False)
    except CoterieError as problem:
        _fail(str(problem), EXIT_BAD_INPUT, debug)
    except click.ClickException as problem:
        _fail(problem.format_message(), EXIT_BAD_INPUT, debug)
    except (KeyboardInterrupt, click.Abort):
        _fail("stopped; a run with a folder goes on with 'coterie resume FOLDER'", EXIT_INTERRUPTED, debug)
    except BrokenPipeError:
        sys.exit(EXIT_BUG)
    except Exception as problem:
        _fail(f"unexpected {type(problem).__name__}: {problem} (--debug shows where)", EXIT_BUG, debug)


def _fail(message: str, code: int, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    click.echo(f"coterie: {' '.join(message.split())}", err=True)
    sys.exit(code)
