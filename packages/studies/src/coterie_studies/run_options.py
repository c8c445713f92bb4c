"""The options of a run as keyword arguments of `coterie.compare` and `coterie.sweep`, for type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict


class RunOptions(TypedDict, total=False):
    """Options that all runs share; each means what it means to `coterie.run`."""

    as_published: bool
    scenario: str | None
    data: str | Path | None
    clients: int | None
    samples: int | None
    groups: int | None
    rounds: int | None
    seed: int
    participation: float
    lr: float | None
    epochs: int | None
    steps: int | None
    batch_size: int | Literal["full"] | None
    momentum: float | None
    weight_decay: float | None
    lr_schedule: str
    evaluate_every: int | Literal["auto"]
    personalise: int
    precision: Literal["float32", "float64", "bf16"]
    privacy: Literal["none", "permutation", "signed-permutation", "projection"]
    aggregate: str
    clip: str
    weight_cap: float
    secure_sums: bool
    secure_limit: float
    secure_minimum: int
    dp_noise: float
    dp_clip: float
    dp_delta: float
    engine: Literal["local", "ray"]
    ray_address: str | None
    device: str
    memory: str | None
    data_dir: str | Path | None
    label: str | None
    client_column: str | None
    drop: str | Sequence[str] | None
    categorical: str | Sequence[str] | None
    decimal: Literal[".", ","] | None
    task: Literal["classification", "regression"] | None
    image_size: int | None
    image_colour: Literal["grey", "colour"] | None
    optimizer: str
    keep_optimizer: bool
    clip_gradient: float | None
    class_weights: str | Sequence[float] | None
    augment: str | None
    server_optimizer: str
    metrics: str | Sequence[str] | None
    validation: float | str | None
    patience: int | None
    monitor: str | None
    max_seconds: float | None
    max_bytes: int | str | None
    max_passes: float | None


def config_values(options: Mapping[str, Any], model: object = None, loss: object = None) -> dict[str, Any]:
    """The options as a configuration takes them: what is given, paths and lists as text, a model or loss by name."""
    named = {key: value for key, value in {"model": model, "loss": loss}.items() if isinstance(value, str)}
    return {key: _as_text(value) for key, value in options.items() if value is not None} | named


def _as_text(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, Path) else value
