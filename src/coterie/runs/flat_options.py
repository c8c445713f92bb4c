"""The options of all groups as keyword arguments; written by scripts/flat_options.py from options.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from coterie.metrics import Metrics
from coterie.trainers.base import Augment
from coterie.trainers.losses import Loss


class FlatOptions(TypedDict, total=False):
    """Options of groups by themselves; those that share a group's name are parameters of `coterie.run`."""

    scenario: str | None
    clients: int | None
    samples: int | None
    groups: int | None
    label: str | None
    client_column: str | None
    drop: str | Sequence[str] | None
    categorical: str | Sequence[str] | None
    decimal: Literal[".", ","] | None
    task: Literal["classification", "regression"] | None
    image_size: int | None
    image_colour: Literal["grey", "colour"] | None
    data_dir: str | Path | None
    rounds: int | None
    patience: int | None
    monitor: str | None
    max_seconds: float | None
    max_bytes: int | str | None
    max_passes: float | None
    lr: float | None
    epochs: int | None
    steps: int | None
    batch_size: int | Literal["full"] | None
    optimizer: str
    momentum: float | None
    weight_decay: float | None
    keep_optimizer: bool
    lr_schedule: str
    clip_gradient: float | None
    loss: str | Loss | None
    class_weights: str | Sequence[float] | None
    augment: str | Augment | None
    precision: Literal["float32", "float64", "bf16"]
    participation: float
    aggregate: str
    expect_hostile: int | str | None
    clip: str
    weight_cap: float
    server_optimizer: str
    metrics: Metrics | None
    validation: float | str | None
    evaluate_every: int | Literal["auto"]
    personalise: int
    secure_sums: bool
    secure_limit: float
    secure_minimum: int
    dp_noise: float
    dp_clip: float
    dp_delta: float
    workers: int | Literal["auto"]
    device: str
    ray_address: str | None
    memory: str | None
