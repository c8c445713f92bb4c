"""Which samples make up each SGD step: the same for every trainer, for one client or for several side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coterie.trainers.augment import augmentation
from coterie.trainers.base import Training, TrainingJob
from coterie.trainers.devices import CPU
from coterie.trainers.losses import Loss
from coterie.trainers.step_losses import Targets

WINDOW_NUMBERS = 2**22
"""Input numbers gathered at once: enough steps to make gathering cheap, few enough to stay small."""


def epoch_orders(samples: int, training: Training, seed: int) -> Iterator[Tensor | None]:
    """The order of the samples in each pass over the data, endlessly; None is their own order (full batch)."""
    if training.batch_size is None or training.batch_size >= samples:
        while True:
            yield None
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randperm(samples, generator=generator)


def batches(samples: int, training: Training, seed: int, device: torch.device = CPU) -> Iterator[Tensor | slice]:
    """The samples of each SGD step, in turn: shuffled passes, cut into batches, the last one of a pass smaller.

    The order of a pass is sent to the device at once: sent with each step, it would be a transfer per step.
    """
    size = samples if training.batch_size is None else min(training.batch_size, samples)
    left = training.batches(samples)
    for order in epoch_orders(samples, training, seed):
        order = None if order is None else order.to(device)
        for start in range(0, samples, size):
            if left == 0:
                return
            left -= 1
            yield slice(None) if order is None else order[start : start + size]
        if left == 0:
            return


@dataclass(frozen=True)
class Samples:
    """One client's samples `x: (n, inputs)`, targets `y`, and how it goes through them.

    `weights: (n,)` are what the samples weigh in the mean of their step; None: all the same. `factors: (n,)` are what
    each one's loss is multiplied by beyond that, which does not make the others weigh more; None: one.
    """

    x: Tensor
    y: Tensor
    n: int
    steps: int
    batch: int
    weights: Tensor | None = None
    factors: Tensor | None = None

    @property
    def full(self) -> bool:
        """Whether every step takes all samples."""
        return self.batch == self.n

    def on(self, device: torch.device) -> Samples:
        """The same on a device; where they are there already, nothing is copied."""
        return replace(self, x=self.x.to(device, non_blocking=True), y=self.y.to(device, non_blocking=True))


def padded(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors `(n_i, ...)` as one `(b, max n, ...)`, zeros where a client has no more."""
    if len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(list(tensors)) if len(tensors) > 1 else tensors[0].unsqueeze(0)
    return pad_sequence(list(tensors), batch_first=True)


def row_weights(counts: Sequence[int], like: Tensor) -> Tensor:
    """The weight of every row in its client's mean, `(b, max n)`: 1/n, and 0 for rows that are not there.

    The weights are of the type of `like`, and on its device.
    """
    n = torch.tensor(counts, device=like.device)
    there = torch.arange(max(counts), device=like.device) < n.unsqueeze(1)
    return there.to(like.dtype) / n.unsqueeze(1)


class FullFeed:
    """Every step takes all samples of every client."""

    def __init__(self, samples: Sequence[Samples], loss: Loss, outputs: int) -> None:
        self.x = padded([s.x for s in samples])
        rows = row_weights([s.n for s in samples], self.x)
        for row, s in zip(rows, samples, strict=True):
            if s.weights is not None:
                row[: s.n] = s.weights / s.weights.sum()
            if s.factors is not None:
                row[: s.n] *= s.factors.to(row.device)
        self.targets = Targets.of(loss, outputs, padded([s.y for s in samples]), rows)

    def step(self, t: int, active: int) -> tuple[Tensor, Targets]:
        """Inputs and targets of step `t` for the first `active` clients."""
        return self.x[:active], self.targets.leading(active)


class BatchOrder:
    """Which samples make up every step of several clients: `size` places for each step, laid out once.

    `index: (b, steps · size)` are samples, `rows: (b, steps · size)` their weights in the mean of their step.
    """

    def __init__(self, samples: Sequence[Samples], jobs: Sequence[TrainingJob], training: Training) -> None:
        self.samples = samples
        self.size = max(s.batch for s in samples)
        self.steps = steps = max(s.steps for s in samples)
        first = samples[0]
        # Places that no sample fills point at the client's first sample and weigh nothing.
        self.index = torch.zeros(len(samples), steps * self.size, dtype=torch.int64)
        self.rows = torch.zeros(len(samples), steps * self.size, dtype=first.x.dtype)
        alike: dict[tuple[int, int, int], int] = {}
        for i, (s, job) in enumerate(zip(samples, jobs, strict=True)):
            self._place(i, s, job, training)
            # Clients of one size weigh their samples alike, unless classes or samples have weights.
            own = s.weights is not None or s.factors is not None
            twin = i if own else alike.setdefault((s.n, s.batch, s.steps), i)
            if twin == i:
                self._weigh(i, s)
            else:
                self.rows[i] = self.rows[twin]
        self.index, self.rows = self.index.to(first.x.device), self.rows.to(first.x.device)

    def _place(self, i: int, s: Samples, job: TrainingJob, training: Training) -> None:
        """Write client i's samples to the places of its steps; each step has `size` places."""
        own = self.index[i]
        for (start, count), order in zip(self._passes(s), epoch_orders(s.n, training, job.seed), strict=False):
            own[start : start + count] = torch.arange(count) if order is None else order[:count]

    def _weigh(self, i: int, s: Samples) -> None:
        """Write the weights of client i's samples in the mean of their step; their places are known."""
        own, index, rest = self.rows[i], self.index[i], s.n % s.batch
        weights = torch.full((s.n,), 1 / s.batch, dtype=s.x.dtype)
        if rest:
            weights[-rest:] = 1 / rest
        for start, count in self._passes(s):
            own[start : start + count] = weights[:count]
            if s.weights is not None:
                for step in range(start, start + count, self.size):
                    places = slice(step, min(step + self.size, start + count))
                    drawn = s.weights[index[places]]
                    own[places] = drawn / drawn.sum()
            if s.factors is not None:
                own[start : start + count] *= s.factors[index[start : start + count]]

    def _passes(self, s: Samples) -> Iterator[tuple[int, int]]:
        """Where each pass over a client's samples begins, and how many of them it takes."""
        each, stop = -(-s.n // self.size) * self.size, s.steps * self.size
        for start in range(0, stop, each):
            yield start, min(s.n, stop - start)

    def targets(self, places: slice) -> Tensor:
        """The targets of some places, `(b, places)` labels or `(b, places, outputs)` reals."""
        index = self.index[:, places]
        return torch.stack([torch.index_select(s.y, 0, own) for s, own in zip(self.samples, index, strict=True)])

    def active(self, t: int) -> int:
        """How many clients take step `t`; they are sorted by falling number of steps."""
        return sum(s.steps > t for s in self.samples) if self.samples[-1].steps <= t else len(self.samples)


class BatchFeed:
    """Every step takes the next batch of each client's shuffled pass, its inputs changed at random if that is asked."""

    def __init__(
        self, samples: Sequence[Samples], jobs: Sequence[TrainingJob], training: Training, loss: Loss, outputs: int
    ) -> None:
        self.order = order = BatchOrder(samples, jobs, training)
        self.loss, self.outputs = loss, outputs
        first = samples[0]
        self.window = max(1, min(order.steps, WINDOW_NUMBERS // (len(samples) * order.size * first.x.shape[1])))
        self.x = first.x.new_empty(len(samples), self.window * order.size, first.x.shape[1])
        self.xs = self.x.split(order.size, 1)
        self.targets: list[Targets] = []
        self.shapes = [job.data.x.shape[1:] for job in jobs]
        self.changes = [augmentation(training, job.seed) for job in jobs]

    def step(self, t: int, active: int) -> tuple[Tensor, Targets]:
        """Inputs and targets of step `t` (asked for in turn) for the first `active` clients."""
        at = t % self.window
        if at == 0:
            self._gather(t)
        x = self.xs[at]
        return x if active == len(x) else x[:active], self.targets[at].leading(active)

    def _gather(self, t: int) -> None:
        order = self.order
        places = slice(t * order.size, (t + self.window) * order.size)
        index = order.index[:, places]
        for i, s in enumerate(order.samples):
            torch.index_select(s.x, 0, index[i], out=self.x[i, : index.shape[1]])
            self._change(i, s, range(t, min(t + self.window, s.steps)))
        targets = Targets.of(self.loss, self.outputs, order.targets(places), order.rows[:, places])
        self.targets = targets.steps(order.size)

    def _change(self, i: int, s: Samples, steps: range) -> None:
        """Augment the inputs of client i's steps, which are gathered in `x`, in turn."""
        change = self.changes[i]
        if change is None:
            return
        each_pass = -(-s.n // s.batch)
        for t, x in zip(steps, self.xs, strict=False):
            there = min(s.batch, s.n - t % each_pass * s.batch)  # the last batch of a pass may be smaller
            batch = x[i, :there]
            batch.copy_(change(batch.view(there, *self.shapes[i])).reshape(there, -1))
