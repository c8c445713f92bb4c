"""Commands that start and resume runs, and list what can be run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
from rich.table import Table

from coterie.cli.progress import Progress, show_results
from coterie.cli.terminal import make_console
from coterie.methods import method_classes
from coterie.models import list_models
from coterie.runs import api
from coterie.runs.config import PLACE_KEYS, RunConfig, make_config, overlay, read_config_file

F = Callable[..., Any]


def config_options(*, leave_out: frozenset[str] = frozenset()) -> Callable[[F], F]:
    """One command-line option for each field of the run's configuration, with the field's own description."""

    def decorate(function: F) -> F:
        for name, field in reversed(RunConfig.model_fields.items()):
            if name in leave_out:
                continue
            flag = "--" + name.replace("_", "-")
            default = "" if field.default is None else f"  [default: {field.default}]"
            if bool in (field.annotation, *get_args(field.annotation)):
                option = click.option(flag, name, is_flag=True, default=None, help=field.description)
            else:
                option = click.option(flag, name, default=None, help=f"{field.description}{default}", metavar="VALUE")
            function = option(function)
        return function

    return decorate


@click.command()
@click.argument("config_file", required=False, metavar="[CONFIG.toml]")
@config_options()
def run(config_file: str | None, **given: Any) -> None:
    """Train a method on a federation. Options come from the file, if one is given; the command line wins.

    Without a method: FedAvg, one model for all, and then CFL, which splits them, side by side.
    """
    table = read_config_file(Path(config_file)) if config_file else {}
    values = overlay(table, {key: value for key, value in given.items() if value is not None})
    both = "method" not in values
    configs = [make_config(values | {"method": name}) for name in (("fedavg", "cfl") if both else (values["method"],))]
    quiet = configs[0].quiet
    place = Path(configs[0].out) if configs[0].out else api.new_folder(configs[0], "compared" if both else None)
    results = []
    for config in configs:
        progress = Progress(quiet=quiet)
        with progress:
            results.append(api.start(config, out=place / config.method if both else place, callbacks=[progress]))
    if not quiet:
        show_results(results, place)


@click.command()
@click.argument("folder")
@config_options(leave_out=frozenset(RunConfig.model_fields) - PLACE_KEYS | {"out"})
def resume(folder: str, **given: Any) -> None:
    """Go on with a run that was stopped or killed, as if nothing had happened."""
    places = {key: value for key, value in given.items() if value is not None}
    quiet = bool(given["quiet"])
    progress = Progress(quiet=quiet)
    with progress:
        result = api.resume(folder, callbacks=[progress], **places)
    if not quiet:
        show_results([result], result.path)


@click.command()
@click.argument("name", required=False)
def methods(name: str | None) -> None:
    """List the methods; with NAME, the options of one."""
    classes = method_classes()
    console = make_console()
    if name is None:
        table = Table("method", "what it does", box=None, pad_edge=False)
        for known in sorted(classes):
            table.add_row(known, first_line(classes[known]))
        console.print(table)
        return
    from coterie.errors import ConfigError, did_you_mean

    if name not in classes:
        raise ConfigError(f"unknown method {name!r}: {did_you_mean(name, classes)}")
    console.print(f"[bold]{name}[/]: {first_line(classes[name])}")
    table = Table("option", "default", "type", box=None, pad_edge=False)
    for field in dataclasses.fields(classes[name]):
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        table.add_row(field.name, str(field.default), kind)
    console.print(table)


@click.command()
def models() -> None:
    """List the networks."""
    table = Table("model", "what it is", box=None, pad_edge=False)
    for spec in list_models():
        table.add_row(spec.name, spec.summary)
    make_console().print(table)


def first_line(cls: type) -> str:
    """The first line of a class's docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]
