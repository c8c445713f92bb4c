"""The computations that a client needs: training, evaluation and gradients, for several clients at once.

Training is SGD or Adam on the client's own data. A trainer gives the clients' updates one by one, or their weighted
sums, which some trainers can form without forming each update.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.errors import ConfigError, did_you_mean
from coterie.federation import Split
from coterie.metrics import MetricFunction
from coterie.parameters import Layout
from coterie.trainers.losses import Loss, correct, sample_losses

OutputSink = Callable[[int, int, Tensor], None]
"""Takes the positions of a client and of a model, and the model's outputs for the client's next samples."""
ROWS_AT_ONCE = 8
"""Updates that are formed before they are added up."""
PIECE = 2**16
"""Numbers of a vector that are worked on at a time where several operations follow each other."""
TOGETHER = 2**20
"""Numbers in the updates of several sums, up to which all are trained together: small networks in few steps of many."""


LARGEST = torch.finfo(torch.float32).max
OPTIMIZERS = ("sgd", "adam", "adamw")

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""`(inputs, generator) -> inputs`: a batch `(n, ...)` changed at random, by draws from the generator alone."""


@dataclass(frozen=True)
class Training:
    """How a client trains on its own data: by default plain SGD."""

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
    """FedProx's μ: adds μ/2 ‖θ − θ_start‖² to the loss, or the distance to the job's own `centre`."""
    layers: tuple[str, ...] = ()
    """Names of the layers to train; the others are frozen. Empty: all."""
    optimizer: str = "sgd"
    """One of OPTIMIZERS."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay of the mean and of the square of the gradients."""
    eps: float = 1e-8
    """Adam's ε."""
    keep_optimizer: bool = False
    """Whether the client keeps the optimiser's state for its next round."""
    clip_gradient: float | None = None
    """The norm that the gradient of every step is cut to; None: as it is."""
    class_weights: tuple[float, ...] | str | None = None
    """Weight of each class in the loss, "balanced" for each client's own n / (classes · n_class), or None."""
    augment: str | Augment | None = None
    """How the inputs of a step are changed at random: a text such as "flip,crop:4", or a function."""

    def __post_init__(self) -> None:
        for name in ("lr", "momentum", "weight_decay", "proximal"):
            if not abs(getattr(self, name)) <= LARGEST:
                raise ConfigError(f"training with {name}={getattr(self, name)!r}: float32 ends at {LARGEST:.3g}")
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer={self.optimizer!r}: {did_you_mean(self.optimizer, OPTIMIZERS)}")

    @property
    def moments(self) -> int:
        """How many numbers the optimiser keeps per parameter."""
        return 2 if self.optimizer != "sgd" else int(self.momentum != 0)

    @property
    def linear(self) -> bool:
        """Whether a step is the gradient times a number, so that steps add up; weight decay may shrink the weights."""
        return not (self.moments or self.proximal or self.clip_gradient is not None)

    def batches(self, samples: int) -> int:
        """How many SGD steps a client with that many samples takes."""
        if self.steps is not None:
            return self.steps
        size = samples if self.batch_size is None else min(self.batch_size, samples)
        return self.epochs * -(-samples // size)

    def samples_seen(self, samples: int) -> int:
        """How many samples per client with that many takes its steps on, counted as often as it takes them."""
        if self.steps is None:
            return self.epochs * samples
        return self.steps * (samples if self.batch_size is None else min(self.batch_size, samples))


class TrainingJob(NamedTuple):
    """One client's training: its data, the vector it starts from `(d,)`, and the seed of its batches.

    `memory` `(1 + moments · trainable,)` is the optimiser's state, where the client keeps it: training starts from it
    and writes over it. `centre` `(d,)` is what the proximal term pulls to, where that is not the start. All jobs of a
    training have the one, or none has; and so with the other.

    `weights` `(n,)` is what the loss of each sample is multiplied by: a step lowers (1/batch) Σ w_s loss_s, so that
    weights of one change nothing; None: all are one.
    """

    data: Split
    start: Tensor
    seed: int
    memory: Tensor | None = None
    centre: Tensor | None = None
    weights: Tensor | None = None


class SumNoise(NamedTuple):
    """Noise that clients add to a secure sum themselves: vectors are cut to `length`, and the noise of the sum has a
    standard deviation of `multiplier` times that."""

    multiplier: float
    length: float


UNEVEN = 10.0
"""The most that a weight may be of the one that is the `minimum`-th largest in a secure sum, unless a client bounds it
otherwise: beyond, the sum is all but one vector."""


class SumRules(NamedTuple):
    """What a client demands of secure sums, whatever the server says: `clients` are the public keys of those that may
    take part, `least` is how many vectors a sum must be of, `allowed` what else is answered, by name, `uneven` how much
    larger than another a weight may be, and `noise` the least multiplier of the noise in a sum."""

    clients: frozenset[bytes]
    least: int
    allowed: tuple[str, ...] = ()
    uneven: float = UNEVEN
    noise: float = 0.0


class Reduction(NamedTuple):
    """How vectors are added up: the weight of each, and the sum it goes to (None: the one that the client chose).

    `noise` is for engines whose sums are secure. `into` are sums so far `(d,)`: a trainer that can may add to them, and
    then gives none back for their groups.
    """

    weights: Sequence[float]
    groups: Sequence[int | None]
    noise: SumNoise | None = None
    into: Mapping[int, Tensor] | None = None

    def at(self, positions: Sequence[int]) -> Reduction:
        """The part of the reduction for some of the vectors."""
        weights, groups = [self.weights[p] for p in positions], [self.groups[p] for p in positions]
        return self._replace(weights=weights, groups=groups)


class Trained(NamedTuple):
    """What training gives: the updates `(jobs, d)`, or their weighted sums `(d,)` by group in float64, not both.

    Norms are over the trainable numbers. An update that is not finite is in no sum.
    """

    vectors: Tensor | None
    sums: dict[int, Tensor]
    norms: Tensor
    losses: Tensor
    """Mean loss seen while training `(jobs,)`."""
    groups: Sequence[int]
    """The sum that each update went to."""

    @classmethod
    def of(cls, vectors: Tensor, losses: Tensor, layout: Layout) -> Trained:
        """Vectors `(jobs, d)` that are not added up, with their norms over the trainable numbers."""
        norms = torch.linalg.vector_norm(vectors[:, : layout.trainable], dim=1)
        return cls(vectors, {}, norms, losses, [0] * len(vectors))


class Trainer(ABC):
    """The computations a client needs, for several clients at once. Every engine has one."""

    layout: Layout
    loss: Loss
    dtype: torch.dtype
    masked: bool = False
    """Whether vectors come and go transformed, because the server must not read them."""
    key: bytes | None = None
    """What the clients share and the server does not know, where they have such a secret."""
    sum_rules: SumRules | None = None
    """What this client demands of secure sums; None: what the server asks for."""
    signing_key: bytes | None = None
    """The client's own private key, where its node has a file of it."""
    metrics: Mapping[str, MetricFunction] = MappingProxyType({})
    """The user's own metrics by name, which a task can ask for."""
    adds_in_place: bool = False
    """Whether it can add a client's update to a sum that is there already."""
    description: str = ""
    """How it trains and why so, in words; empty where it was not chosen by the model."""

    def train(self, jobs: Sequence[TrainingJob], training: Training, reduce: Reduction | None = None) -> Trained:
        """Train every job and return the updates or, with `reduce`, their weighted sums by group."""
        if reduce is None:
            return Trained.of(*self._updates(jobs, training), self.layout)
        groups = [0 if group is None else group for group in reduce.groups]
        norms, losses = torch.empty(2, len(jobs), dtype=torch.float64)
        sums: dict[int, Tensor] = {}
        together = None
        if len(set(groups)) > 1 and len(jobs) * self.layout.size <= TOGETHER:
            together, losses[:] = self._updates(jobs, training)
        for group in sorted(set(groups)):
            rows = [i for i, own in enumerate(groups) if own == group]
            weights = [reduce.weights[i] for i in rows]
            there = reduce.into.get(group) if reduce.into is not None and self.adds_in_place else None
            if there is not None:
                _, norms[rows], losses[rows] = self._sum([jobs[i] for i in rows], training, weights, there)
            elif together is None:
                sums[group], norms[rows], losses[rows] = self._sum([jobs[i] for i in rows], training, weights)
            else:
                sums[group] = torch.zeros(self.layout.size, dtype=torch.float64)
                norms[rows] = add_rows(sums[group], together[rows], weights, self.layout.trainable)
        return Trained(None, sums, norms, losses, groups)

    @abstractmethod
    def evaluate(
        self, data: Sequence[Split], models: Tensor, outputs_to: OutputSink | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean losses and accuracies `(clients, k)` of the models `(k, d)` on every client's data.

        `outputs_to` is given the outputs that these are computed from, a client's samples in order.
        """

    @abstractmethod
    def gradient(self, data: Sequence[Split], model: Tensor) -> tuple[Tensor, Tensor]:
        """Full-batch gradients `(clients, d)` (zero at buffers) and losses `(clients,)` at one model `(d,)`."""

    @abstractmethod
    def outputs(self, data: Split, models: Tensor) -> Tensor:
        """What the models `(k, d)` say of a client's samples: `(k, n, ..., outputs)`, in evaluation mode."""

    def with_offsets(self, model: Tensor, offsets: Tensor, data: Split) -> Tensor:
        """The model `(d,)` once for each of the offsets `(n, outputs)`, `(n, d)`, which its outputs are shifted by.

        Where it does not end in a bias of its outputs, as found by trying it on one of the samples, it stays as it is.
        """
        shifted = model.repeat(len(offsets), 1)
        last = [entry for entry in self.layout.entries if not entry.buffer][-1]
        place = slice(last.start, last.stop)
        if last.shape == (offsets.shape[1],) and self._is_output_bias(place, model, data):
            shifted[:, place] += offsets.to(model.dtype)
        return shifted

    def _is_output_bias(self, place: slice, model: Tensor, data: Split) -> bool:
        """Does what is added to these numbers come out as it is?"""
        added = torch.arange(1, place.stop - place.start + 1, dtype=model.dtype, device=model.device)
        raised = model.clone()
        raised[place] += added
        before, after = self.outputs(Split(data.x[:1], data.y[:1]), torch.stack([model, raised]))
        return after.shape[-1:] == added.shape and torch.allclose(after - before, added.expand_as(after), rtol=1e-2)

    def accuracy_of(self, outputs: Tensor, targets: Tensor) -> float:
        """The share of labels that outputs `(n, ..., outputs)` predict rightly; NaN for real targets."""
        return float(correct(outputs, targets, self.loss))

    def losses_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample `(k, n)`, for outputs `(k, n, ..., outputs)` of k models and targets `(n, ...)`."""
        return sample_losses(self.loss, outputs, targets.to(self.dtype) if targets.is_floating_point() else targets)

    @abstractmethod
    def _updates(self, jobs: Sequence[TrainingJob], training: Training) -> tuple[Tensor, Tensor]:
        """Train every job: the updates `(jobs, d)` and the mean loss seen while training `(jobs,)`."""

    def _sum(
        self, jobs: Sequence[TrainingJob], training: Training, weights: Sequence[float], total: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Train every job: the weighted sum of the finite updates `(d,)`, all norms and losses `(jobs,)`; float64.

        `total` is a sum to add to, for a trainer that `adds_in_place`; None: a new one.
        """
        assert total is None, "only a trainer that adds in place is given a sum"
        total = torch.zeros(self.layout.size, dtype=torch.float64)
        norms, losses = torch.empty(2, len(jobs), dtype=torch.float64)
        for start in range(0, len(jobs), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            updates, losses[part] = self._updates(jobs[part], training)
            norms[part] = add_rows(total, updates, weights[part], self.layout.trainable)
        return total, norms, losses


def add_rows(total: Tensor, rows: Tensor, weights: Sequence[float], trainable: int) -> Tensor:
    """Add the weighted finite `rows: (n, d)` to the float64 `total: (d,)` in order; return the rows' norms `(n,)`."""
    norms: Tensor = torch.linalg.vector_norm(rows[:, :trainable], dim=1)
    for row, weight, norm in zip(rows, weights, norms.tolist(), strict=True):
        if math.isfinite(norm):
            add_row(total, row, weight)
    return norms.double()


def add_row(total: Tensor, row: Tensor, weight: float, start: Tensor | None = None) -> None:
    """Add weight · row, or weight · (row − start), to the float64 `total`; all are `(d,)`.

    In pieces, because what is made on the way would else leave the cache and come as new memory. The product is rounded
    to float64 before it is added, so that a sum of one row may be added later with the same result.
    """
    starts = repeat(None) if start is None else start.split(PIECE)
    for sums, own, before in zip(total.split(PIECE), row.split(PIECE), starts, strict=False):
        moved = own if before is None else own - before
        sums += moved.to(sums.dtype, copy=True).mul_(weight)


def norm_of(row: Tensor, start: Tensor, trainable: int) -> float:
    """The norm of row − start, both `(d,)`, over the trainable numbers."""
    pieces = zip(row[:trainable].split(PIECE), start[:trainable].split(PIECE), strict=True)
    return math.hypot(*[float(torch.linalg.vector_norm(own - before)) for own, before in pieces])
