"""The options of a run as keyword arguments of `coterie.compare` and `coterie.sweep`, for type checkers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from coterie import (
    AggregationOptions,
    DataOptions,
    EngineOptions,
    EvaluationOptions,
    LimitOptions,
    PrivacyOptions,
    TrainingOptions,
)
from coterie.runs import FlatOptions, flat_values


class RunOptions(FlatOptions, total=False):
    """Options that all runs share, in groups or by themselves; each means what it means to `coterie.run`."""

    as_published: bool
    seed: int
    data: DataOptions | str | Path | None
    training: TrainingOptions | None
    limits: LimitOptions | None
    aggregation: AggregationOptions | None
    evaluation: EvaluationOptions | None
    privacy: PrivacyOptions | Literal["none", "permutation", "signed-permutation", "projection"]
    engine: EngineOptions | Literal["local", "ray"]


def config_values(options: Mapping[str, Any], model: object) -> tuple[dict[str, Any], Any, Any]:
    """The options as a configuration takes them, and the model and the loss where they are objects of Python."""
    given = {key: value for key, value in flat_values(options).items() if value is not None}
    objects = {"model": model, "loss": given.pop("loss", None)}
    named = {key: value for key, value in objects.items() if isinstance(value, str)}
    found = objects | dict.fromkeys(named)
    return given | named, found["model"], found["loss"]
