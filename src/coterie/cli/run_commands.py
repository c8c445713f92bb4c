"""Commands that start and resume runs, and list what can be run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.cli.options import RunCommand, complete_folder, complete_method, config_options, examples
from coterie.cli.progress import Progress, show_results
from coterie.cli.terminal import make_console
from coterie.engines import available_cores, pool_start_method
from coterie.engines.children import performed_beside
from coterie.errors import RunError
from coterie.methods import make_method, method_classes
from coterie.methods.base import find_method
from coterie.methods.option_types import describe_options, value_in_words
from coterie.methods.papers import Paper
from coterie.methods.published import departures_of, paper_of, table_of
from coterie.models import list_models
from coterie.runs import Result, api, load
from coterie.runs.config import LIMIT_KEYS, PLACE_KEYS, RunConfig, make_config, overlay, read_config_file
from coterie.runs.folder import RunFolder
from coterie.runs.options import option_default


@click.command(
    cls=RunCommand,
    epilog=examples(
        "coterie run",
        "coterie run --method ifca:k=4 --scenario digits-rotated --seed 1 --out runs/rotated",
        "coterie run --method cfl --data FOLDER --model mlp:hidden=64 --rounds 50",
        "coterie run config.toml --seed 3",
    ),
)
@click.argument("config_file", required=False, metavar="[CONFIG.toml]")
@config_options(defaults={"method": "fedavg, and then auto"})
def run(config_file: str | None, **given: Any) -> None:
    """Train a method on a federation; the command line wins over CONFIG.toml.

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
    cls=RunCommand,
    epilog=examples("coterie resume runs/rotated", "coterie resume runs/rotated --workers 4 --data-dir /data"),
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


@click.command(epilog=examples("coterie methods", "coterie methods cfl", "coterie methods ifca --as table1-mnist"))
@click.argument("name", required=False, shell_complete=complete_method)
@click.option("--as", "version", metavar="paper|TABLE", help="the settings that the paper, or a table of it, prints")
def methods(name: str | None, version: str | None) -> None:
    """List the methods; with NAME, the options of one."""
    console = make_console()
    if name is None:
        table = Table("method", "what it does", box=None, pad_edge=False)
        for known, cls in method_classes().items():
            table.add_row(known, escape(first_line(cls)))
        console.print(table)
        return
    cls = find_method(name)
    if version is not None:
        show_published(console, name, cls, version)
        return
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
    show_paper(console, name, cls)
    first = options[0]
    console.print(f"Given as {name}:{first.name}={first.default},…", markup=False)


def show_paper(console: Console, name: str, cls: type) -> None:
    """Print what a method is published in, where ours is different, and the tables whose settings it knows."""
    paper, departures = paper_of(cls), departures_of(cls)
    if paper is None:
        return
    says = f"{name}:as=paper undoes where the defaults depart from it:" if departures else "by default as printed there"
    console.print(f"\nPaper: {paper.citation}; {says}", markup=False, soft_wrap=True)
    if departures:
        table = Table("option", "as=paper", "what the default does instead", box=None, pad_edge=False)
        for departure in departures:
            table.add_row(departure.option, escape(value_in_words(departure.paper)), escape(departure.why))
        console.print(table)
    show_differences(console, paper)
    if paper.tables:
        console.print(f"Settings of its tables: {', '.join(f'{name}:as={known}' for known in paper.tables)}")


def show_differences(console: Console, paper: Paper) -> None:
    """Print what no option undoes."""
    for one in paper.differences:
        text = f"Different whatever the options are: {one.printed}; here {one.here} ({one.why})"
        console.print(text, markup=False, soft_wrap=True)


def show_published(console: Console, name: str, cls: type, version: str) -> None:
    """Print every setting of a method as its paper, or a table of it, prints it; * marks what is not our default."""
    printed, paper = table_of(cls, name, version), paper_of(cls)
    assert paper is not None  # or there were no table
    made, default = make_method(f"{name}:as={version}"), make_method(name)
    console.print(f"{name}:as={version}: {paper.citation}: {printed.about}", markup=False, soft_wrap=True)
    table = Table("setting", "as printed", "our default", box=None, pad_edge=False)
    for option in describe_options(cls):
        values = [getattr(method, option.name) for method in (made, default)]
        mark = "" if values[0] == values[1] else " *"
        table.add_row(option.name + mark, *(escape(value_in_words(value)) for value in values))
    for part, inner in getattr(made, "parts", dict)().items():
        for option in describe_options(type(inner)):
            table.add_row(f"  {part}: {option.name}", escape(value_in_words(getattr(inner, option.name))), "")
    for key, value in {**printed.training, **printed.federation}.items():
        table.add_row(f"--{key.replace('_', '-')} *", escape(value_in_words(value)), escape(option_default(key)))
    console.print(table)
    if printed.ours:
        console.print(printed.ours, markup=False, soft_wrap=True)
    show_differences(console, paper)


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
