"""What the commands `run` and `resume` do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from coterie.cli.progress import Progress, show_results
from coterie.engines import available_cores, pool_start_method
from coterie.engines.children import performed_beside
from coterie.errors import RunError
from coterie.runs import Result, api, load
from coterie.runs.config import RunConfig, make_config, overlay, read_config_file
from coterie.runs.folder import RunFolder


def begin(config_file: str | None, given: dict[str, Any]) -> None:
    """Do the run, or the two without a method, and show what came out."""
    values = overlay(read_config_file(Path(config_file)) if config_file else {}, given)
    two = "method" not in values
    config = make_config({"method": "fedavg"} | values)
    place = Path(config.out) if config.out else api.new_folder(config, "compared" if two else None)
    results = _fedavg_and_auto(config, values, place) if two else [_followed(config, place)]
    if not config.quiet:
        show_results(results, place)


def _fedavg_and_auto(fedavg: RunConfig, values: dict[str, Any], place: Path) -> list[Result]:
    """One model for all, and what serves these clients best: at the same time, where that is sure to be faster."""
    if RunFolder(place).has("config.json"):
        raise RunError(f"{place}: holds a run, and without --method two are begun: choose another --out")
    auto = make_config(values | {"method": "auto"})
    first, second = place / "fedavg", place / "auto"
    if first.exists() or not _small_and_two_cores(fedavg):
        return [_followed(fedavg, first), _followed(auto, second)]
    alone = make_config(values | {"method": "fedavg", "workers": 1})
    with performed_beside(partial(_trained, alone, first)) as finish:
        result = _followed(auto, second)
        finish()
    return [load(first), result]


def proceed(folder: str, quiet: bool, places: dict[str, Any]) -> None:
    """Resume the run in a folder, and show what came out."""
    progress = Progress(quiet=quiet)
    with _resumable(Path(folder)), progress:
        result = api.resume(folder, callbacks=[progress], progress=False, **places)
    if not quiet:
        show_results([result], result.path)


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
