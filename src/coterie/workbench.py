"""The computations that a client needs, as a contract between what it is asked to do and the engine it runs on.

Training is plain SGD on the client's own data; a workbench does it for several clients at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from coterie.federation import Split
from coterie.parameters import Layout

ROWS_AT_ONCE = 8
"""Updates that are formed before they are added up."""


@dataclass(frozen=True)
class Training:
    """How a client trains: plain SGD on its own data."""

    lr: float = 0.1
    """Step size."""
    epochs: int = 1
    """Passes over the client's data (ignored when `steps` is given)."""
    steps: int | None = None
    """Number of SGD steps, instead of epochs."""
    batch_size: int | None = 32
    """Samples in a step; None is all of them (full batch)."""
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    """FedProx's μ: adds μ/2 ‖θ − θ_start‖² to the loss."""
    layers: tuple[str, ...] = ()
    """Names of the layers to train; the others are frozen. Empty: all."""

    def batches(self, samples: int) -> int:
        """How many SGD steps a client with that many samples takes."""
        if self.steps is not None:
            return self.steps
        size = samples if self.batch_size is None else min(self.batch_size, samples)
        return self.epochs * -(-samples // size)


class Job(NamedTuple):
    """One client's training: its data, the vector it starts from `(d,)`, and the seed of its batches."""

    data: Split
    start: Tensor
    seed: int


class Workbench(Protocol):
    """The computations a client needs, for several clients at once; every engine has one."""

    layout: Layout

    def train(self, jobs: Sequence[Job], training: Training) -> tuple[Tensor, Tensor]:
        """Train every job: the updates `(jobs, d)` and the mean loss seen while training `(jobs,)`."""
        ...

    def evaluate(self, data: Sequence[Split], models: Tensor) -> tuple[Tensor, Tensor]:
        """Mean losses and accuracies `(clients, k)` of the models `(k, d)` on every client's data."""
        ...

    def gradient(self, data: Sequence[Split], model: Tensor) -> tuple[Tensor, Tensor]:
        """Full-batch gradients `(clients, d)` (zero at buffers) and losses `(clients,)` at one model `(d,)`."""
        ...


@runtime_checkable
class SummingBench(Protocol):
    """A workbench that can add updates up without forming each of them."""

    def train_sum(
        self, jobs: Sequence[Job], training: Training, weights: Sequence[float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Train every job: the weighted sum of the finite updates `(d,)`, norms and losses `(jobs,)`; in float64."""
        ...


def train_sum(
    bench: Workbench, jobs: Sequence[Job], training: Training, weights: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Train every job: the weighted sum of the finite updates `(d,)`, all norms and losses `(jobs,)`; in float64."""
    if isinstance(bench, SummingBench):
        return bench.train_sum(jobs, training, weights)
    total = torch.zeros(bench.layout.size, dtype=torch.float64)
    norms, losses = torch.empty(2, len(jobs), dtype=torch.float64)
    for start in range(0, len(jobs), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        updates, losses[part] = bench.train(jobs[part], training)
        norms[part] = add_rows(total, updates, weights[part], bench.layout.trainable)
    return total, norms, losses


def add_rows(total: Tensor, rows: Tensor, weights: Sequence[float], trainable: int) -> Tensor:
    """Add the weighted finite `rows: (n, d)` to the float64 `total: (d,)` in order; return the rows' norms `(n,)`."""
    norms: Tensor = torch.linalg.vector_norm(rows[:, :trainable], dim=1)
    for row, weight, norm in zip(rows, weights, norms.tolist(), strict=True):
        if math.isfinite(norm):
            total.add_(row, alpha=weight)
    return norms.double()
