"""The options of a run as keyword arguments of `coterie.compare` and `coterie.sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.runs import flat_values


def config_values(options: Mapping[str, Any], model: object) -> tuple[dict[str, Any], Any, Any]:
    """The options as a configuration takes them, and the model and the loss where they are objects of Python."""
    given = {key: value for key, value in flat_values(options).items() if value is not None}
    objects = {"model": model, "loss": given.pop("loss", None)}
    named = {key: value for key, value in objects.items() if isinstance(value, str)}
    found = objects | dict.fromkeys(named)
    return given | named, found["model"], found["loss"]
