"""The clients that a run was trained on, made again from what its folder says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.errors import ConfigError
from coterie.federation import Federation, hold_out
from coterie.runs import RunFolder, fingerprint, make_config, make_federation, stored_values

if TYPE_CHECKING:
    from coterie.runs import Result


def clients_of(result: Result, data: str | None = None, data_dir: str | None = None) -> Federation:
    """The clients that a run was trained on, made again from its folder's configuration.

    Args:
        result: the run.
        data: where the run's own files lie now, if not where they were.
        data_dir: folder with the data sets.

    Raises:
        ConfigError: the data is not at hand, or is not what the run was trained on.
    """
    stored = RunFolder(result.path).config() if result.path is not None else {}
    config = make_config(stored_values(stored), str(result.path)) if stored else None
    if config is None or not (config.scenario or config.data):
        raise ConfigError(
            "this needs the clients' data, and the run was given it in Python: give it again, as in "
            "coterie.load(folder).explain(federation)"
        )
    changed = {"data": data or config.data, "data_dir": data_dir or config.data_dir}
    if data and not config.data:
        raise ConfigError(f"--data {data}: the run was trained on scenario {config.scenario!r}: leave it out")
    federation = make_federation(config.model_copy(update=changed))[0]
    if isinstance(config.validation, float):
        federation = hold_out(federation, config.validation, config.seed)
    if fingerprint(federation) != stored["federation"]:
        where = changed["data"] or config.scenario
        raise ConfigError(
            f"the data of {where!r} is not what the run was trained on: restore it, or say where it lies (--data), or "
            "in Python give the clients, as in coterie.load(folder).explain(federation)"
        )
    return federation
