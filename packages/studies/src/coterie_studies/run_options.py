"""The options of a run as keyword arguments of `coterie.compare` and `coterie.sweep`, for type checkers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from coterie.runs import (
    AggregationOptions,
    DataOptions,
    EngineOptions,
    EvaluationOptions,
    LimitOptions,
    PrivacyOptions,
    SharedOptions,
    TrainingOptions,
    flat_values,
)


class RunOptions(SharedOptions, total=False):
    """Options that all runs share, in groups or by themselves; each means what it means to `coterie.run`."""

    seed: int
    data: DataOptions | str | Path | None
    training: TrainingOptions | None
    limits: LimitOptions | None
    aggregation: AggregationOptions | None
    evaluation: EvaluationOptions | None
    privacy: PrivacyOptions | Literal["none", "permutation", "signed-permutation", "projection"]
    engine: EngineOptions | Literal["local", "ray"]


def config_values(options: Mapping[str, Any], model: object = None, loss: object = None) -> dict[str, Any]:
    """The options as a configuration takes them: what is given, with a model or a loss by name."""
    named = {key: value for key, value in {"model": model, "loss": loss}.items() if isinstance(value, str)}
    return {key: value for key, value in flat_values(options).items() if value is not None} | named
