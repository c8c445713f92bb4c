"""Commands that start and resume runs, and list what can be run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from coterie.cli.options import complete_folder, complete_method, config_options, examples
from coterie.cli.progress import Progress, show_results
from coterie.cli.terminal import make_console
from coterie.engines import available_cores, pool_start_method
from coterie.engines.children import performed_beside
from coterie.errors import RunError
from coterie.methods import method_classes
from coterie.methods.base import find_method
from coterie.methods.option_types import describe_options, value_in_words
from coterie.methods.published import departures_of
from coterie.models import list_models
from coterie.runs import Result, api, load
from coterie.runs.config import LIMIT_KEYS, PLACE_KEYS, RunConfig, make_config, overlay, read_config_file
from coterie.runs.folder import RunFolder


@click.command(
    epilog=examples(
        "coterie run",
        "coterie run --method ifca:k=4 --scenario digits-rotated --seed 1 --out runs/rotated",
        "coterie run --method cfl --data FOLDER --model mlp:hidden=64 --rounds 50",
        "coterie run config.toml --seed 3",
    )
)
@click.argument("config_file", required=False, metavar="[CONFIG.toml]")
@config_options(defaults={"method": "fedavg, and then auto"})
def run(config_file: str | None, **given: Any) -> None:
    """Train a method on a federation. Options come from the file, if one is given; the command line wins.

    Without a method: auto, which finds out how these clients are served best, beside FedAvg, one model for all. Without
    data too, where there are two cores, both run at the same time, and the progress is auto's.
    """
    table = read_config_file(Path(config_file)) if config_file else {}
    values = overlay(table, {key: value for key, value in given.items() if value is not None})
    both = "method" not in values
    configs = [make_config(values | {"method": name}) for name in (("fedavg", "auto") if both else (values["method"],))]
    quiet = configs[0].quiet
    place = Path(configs[0].out) if configs[0].out else api.new_folder(configs[0], "compared" if both else None)
    if both and RunFolder(place).has("config.json"):
        raise RunError(f"{place}: holds a run, and without --method two are begun: choose another --out")
    folders = [place / config.method if both else place for config in configs]
    if both and _small_and_two_cores(configs[0]) and not folders[0].exists():
        alone = make_config(values | {"method": "fedavg", "workers": 1})
        with performed_beside(partial(_trained, alone, folders[0])) as finish:
            second = _followed(configs[1], folders[1])
            finish()
        results = [load(folders[0]), second]
    else:
        results = [_followed(config, folder) for config, folder in zip(configs, folders, strict=True)]
    if not quiet:
        show_results(results, place)


def _small_and_two_cores(config: RunConfig) -> bool:
    """Whether two runs at once are sure to take less time: the data is our own and small, and a core is free."""
    ours = config.scenario is None and config.data is None
    free = config.workers == "auto" and config.engine == "local" and available_cores() > 1
    return ours and free and pool_start_method() == "fork"


def _trained(config: RunConfig, folder: Path) -> None:
    """Do a run without a word."""
    api.start(config, out=folder)


def _followed(config: RunConfig, folder: Path) -> Result:
    """Do a run, and show its progress."""
    progress = Progress(quiet=config.quiet)
    with _resumable(folder), progress:
        return api.start(config, out=folder, callbacks=[progress])


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Give Ctrl-C the command that resumes the run in this folder, where it has begun."""
    try:
        yield
    except KeyboardInterrupt:
        begun = RunFolder(folder).has("config.json")
        raise click.Abort(f"stopped; resume with 'coterie resume {folder}'" if begun else "stopped") from None


@click.command(
    epilog=examples("coterie resume runs/rotated", "coterie resume runs/rotated --workers 4 --data-dir /data")
)
@click.argument("folder", shell_complete=complete_folder)
@config_options(leave_out=frozenset(RunConfig.model_fields) - PLACE_KEYS - LIMIT_KEYS | {"out"})
def resume(folder: str, quiet: bool | None, **given: Any) -> None:
    """Resume a run that was stopped or killed, as if nothing had happened."""
    places = {key: value for key, value in given.items() if value is not None}
    progress = Progress(quiet=bool(quiet))
    with _resumable(Path(folder)), progress:
        result = api.resume(folder, callbacks=[progress], progress=False, **places)
    if not quiet:
        show_results([result], result.path)


@click.command(epilog=examples("coterie methods", "coterie methods cfl"))
@click.argument("name", required=False, shell_complete=complete_method)
def methods(name: str | None) -> None:
    """List the methods; with NAME, the options of one."""
    console = make_console()
    if name is None:
        table = Table("method", "what it does", box=None, pad_edge=False)
        for known, cls in method_classes().items():
            table.add_row(known, escape(first_line(cls)))
        console.print(table)
        return
    cls = find_method(name)
    summary, _, more = inspect.cleandoc(cls.__doc__ or "").partition("\n")
    console.print(f"[bold]{name}[/]: {escape(summary)}", soft_wrap=True)
    if more.strip():
        console.print(escape(more.strip()))
    options = describe_options(cls)
    if not options:
        console.print("It has no options.")
        return
    table = Table("option", "type", "default", "what it does", box=None, pad_edge=False)
    for option in options:
        table.add_row(option.name, escape(option.type), escape(option.default), escape(one_line(option.text)))
    console.print(table)
    if departures := departures_of(cls):
        console.print(f"\nWhere the defaults depart from the paper; {name}:as=paper undoes all of it:", markup=False)
        table = Table("option", "as=paper", "what the default does instead", box=None, pad_edge=False)
        for departure in departures:
            table.add_row(departure.option, escape(value_in_words(departure.paper)), escape(departure.why))
        console.print(table)
    first = options[0]
    console.print(f"Given as {name}:{first.name}={first.default},…", markup=False)


@click.command(epilog=examples("coterie models"))
def models() -> None:
    """List the networks."""
    table = Table("model", "what it is", box=None, pad_edge=False)
    for spec in list_models():
        table.add_row(spec.name, spec.summary)
    make_console().print(table)


def one_line(text: str) -> str:
    """A text without its line breaks."""
    return " ".join(text.split())


def first_line(cls: type) -> str:
    """The first line of a class's docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]
