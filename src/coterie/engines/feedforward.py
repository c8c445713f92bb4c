"""The workbench for feed-forward networks: several clients in each matrix product, gradients written out by hand.

It is chosen by looking at the module, and gives what `LoopBench` gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.engines.devices import CPU
from coterie.engines.feeds import BatchFeed, FullFeed, Samples, padded, shares
from coterie.engines.gram import Course, GramCache, add_updates, pays, train_in_sample_space, write_updates
from coterie.engines.kernels import (
    Affine,
    Plan,
    Trained,
    activate,
    affines,
    backward,
    forward,
    leading,
    loss_gradient,
    side_by_side,
)
from coterie.federation import Split
from coterie.parameters import Layout
from coterie.workbench import Job, Training, add_rows

GROUP_WEIGHTS = 2**20
"""Weights that are trained together: more would fall out of the cache between two steps."""
GROUP_VALUES = 2**22
"""Input and hidden numbers that are worked on together."""
GRAM_BYTES = 2**30


@dataclass(frozen=True)
class _Group:
    """Jobs that are trained together, by falling number of steps, and their places among all."""

    where: slice | list[int]
    jobs: list[Job]
    starts: list[Tensor]
    samples: list[Samples]
    trained: list[Trained]
    by_samples: bool
    """Whether they are trained in sample space."""

    @property
    def steps(self) -> Tensor:
        """Steps of each job `(b,)`, at least one."""
        return torch.tensor([max(s.steps, 1) for s in self.samples], device=self.starts[0].device)


class FeedforwardBench:
    """Trains and evaluates many clients at once; `gram_bytes` bounds the Gram matrices kept between rounds.

    It computes on `device`; what it is given and what it returns is in the processor's memory.
    """

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        dtype: torch.dtype = torch.float32,
        *,
        gram_bytes: int = GRAM_BYTES,
        sample_space: bool = True,
        device: torch.device = CPU,
    ) -> None:
        self.plan = plan
        self.layout = Layout.of(module)
        self.dtype = dtype
        self.grams = GramCache(gram_bytes)
        self.sample_space = sample_space
        self.device = device

    def _x(self, data: Split, n: int) -> Tensor:
        """The inputs of n samples as `(n, inputs)`."""
        return data.x.reshape(n, self.plan.stages[0].inputs).to(self.dtype)

    def _y(self, data: Split, n: int) -> Tensor:
        """The targets of n samples: labels `(n,)` or reals `(n, outputs)`."""
        return data.y if self.plan.loss == "softmax" else data.y.reshape(n, self.plan.stages[-1].outputs).to(self.dtype)

    @torch.no_grad()
    def train(self, jobs: Sequence[Job], training: Training) -> tuple[Tensor, Tensor]:
        """Train every job: updates `(jobs, d)` and the mean loss seen `(jobs,)`."""
        updates = torch.empty(len(jobs), self.plan.size, dtype=self.dtype, device=self.device)
        losses = torch.empty(len(jobs), dtype=self.dtype, device=self.device)
        for group in self._divided(jobs, training):
            where = group.where
            block = updates[where] if isinstance(where, slice) else updates.new_empty(len(where), self.plan.size)
            losses[where] = self._train_rows(group, training, block)
            if not isinstance(where, slice):
                updates[where] = block
        return updates.cpu(), losses.cpu()

    @torch.no_grad()
    def train_sum(
        self, jobs: Sequence[Job], training: Training, weights: Sequence[float]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Train every job: the weighted sum of the finite updates `(d,)`, norms and losses `(jobs,)`; in float64."""
        total = torch.zeros(self.plan.size, dtype=torch.float64, device=self.device)
        norms, losses = torch.empty(2, len(jobs), dtype=torch.float64, device=self.device)
        due = torch.tensor(weights, dtype=torch.float64, device=self.device)
        for group in self._divided(jobs, training):
            where = group.where
            if group.by_samples:
                course = self._course(group, training)
                norms[where] = add_updates(course, self.plan, training.lr, due[where], total).double()
                losses[where] = (course.losses / group.steps).double()
            else:
                block = torch.empty(len(group.jobs), self.plan.size, dtype=self.dtype, device=self.device)
                losses[where] = self._train_rows(group, training, block).double()
                norms[where] = add_rows(total, block, due[where].tolist(), self.plan.size)
        return total.cpu(), norms.cpu(), losses.cpu()

    def _divided(self, jobs: Sequence[Job], training: Training) -> Iterator[_Group]:
        """The jobs in groups that are trained together."""
        samples = [self._samples(job, training) for job in jobs]
        trained = self._trained(training)
        by_samples = [self._goes_by_samples(s, training, trained) for s in samples]
        # One copy of each vector, so that clients which start from the same one can still be told.
        starts = {job.start.data_ptr(): job.start.to(self.device, self.dtype) for job in jobs}
        for members in self._groups(samples, by_samples):
            first, count = members[0], len(members)
            adjacent = members == list(range(first, first + count))
            yield _Group(
                slice(first, first + count) if adjacent else members,
                [jobs[i] for i in members],
                [starts[jobs[i].start.data_ptr()] for i in members],
                [samples[i].on(self.device) for i in members],
                trained,
                by_samples[first],
            )

    def _train_rows(self, group: _Group, training: Training, updates: Tensor) -> Tensor:
        """Write the group's updates `(b, d)`; the mean losses seen `(b,)`."""
        if group.by_samples:
            course = self._course(group, training)
            write_updates(course, self.plan, training.lr, updates)
            return course.losses / group.steps
        return self._train_group(group, training, updates) / group.steps

    def _course(self, group: _Group, training: Training) -> Course:
        grams = [self.grams.of(job.data.x, s.x) for job, s in zip(group.jobs, group.samples, strict=True)]
        return train_in_sample_space(self.plan, group.starts, group.samples, grams, training.lr, group.trained)

    def _samples(self, job: Job, training: Training) -> Samples:
        n = len(job.data)
        batch = n if training.batch_size is None else min(training.batch_size, n)
        return Samples(self._x(job.data, n), self._y(job.data, n), n, training.batches(n), batch)

    def _trained(self, training: Training) -> list[Trained]:
        spans = self.layout.select(training.layers) if training.layers else (slice(0, self.plan.size),)

        def inside(place: slice | None) -> bool:
            return place is not None and any(s.start <= place.start and place.stop <= s.stop for s in spans)

        return [Trained(inside(stage.weight), inside(stage.bias)) for stage in self.plan.stages]

    def _goes_by_samples(self, s: Samples, training: Training, trained: Sequence[Trained]) -> bool:
        first = self.plan.stages[0]
        plain = not (training.momentum or training.weight_decay or training.proximal)
        whole = trained[0].weight and (trained[0].bias or first.bias is None)
        return self.sample_space and plain and whole and s.full and pays(first, s.n, s.steps)

    def _groups(self, samples: Sequence[Samples], in_samples: Sequence[bool]) -> Iterator[list[int]]:
        """Positions of clients to train together: of one way and like batch size, by falling number of steps."""
        order = sorted(range(len(samples)), key=lambda i: (in_samples[i], -samples[i].batch, i))
        start = 0
        while start < len(order):
            lead = samples[order[start]]
            values = lead.batch * (max(self.plan.width, lead.batch) if in_samples[order[start]] else self.plan.width)
            limit = max(1, GROUP_VALUES // values)
            if not in_samples[order[start]]:
                limit = max(1, min(limit, GROUP_WEIGHTS // self.plan.size))
            stop = start + 1
            while (
                stop < min(len(order), start + limit)
                and in_samples[order[stop]] == in_samples[order[start]]
                and 2 * samples[order[stop]].batch > lead.batch
            ):
                stop += 1
            yield sorted(order[start:stop], key=lambda i: -samples[i].steps)
            start = stop

    def _train_group(self, group: _Group, training: Training, updates: Tensor) -> Tensor:
        """Write the updates `(b, d)`, and give the sums of losses `(b,)`."""
        plan, jobs, starts, samples, trained = self.plan, group.jobs, group.starts, group.samples, group.trained
        feed = FullFeed(samples) if all(s.full for s in samples) else BatchFeed(samples, jobs, training)
        shared = len({start.data_ptr() for start in starts}) == 1
        origin = affines(plan.stages, starts[0].expand(len(starts), -1) if shared else torch.stack(list(starts)))
        weights = side_by_side(origin)
        optimizer = _Momentum(weights, origin, training, trained) if _needs_gradients(training) else None
        losses = updates.new_zeros(len(jobs))
        layers: list[Affine] = []
        before = -1
        for t in range(samples[0].steps):
            active = sum(s.steps > t for s in samples) if samples[-1].steps <= t else len(samples)
            if active != before:
                layers, before = leading(weights, active), active
            x, y, rows = feed.step(t, active)
            values = forward(plan.stages, layers, x)
            seen, grad = loss_gradient(plan.loss, values[-1], y, rows)
            losses[:active] += seen
            if optimizer is None:
                backward(plan.stages, layers, values, grad, layers, trained, alpha=-training.lr, beta=1)
            else:
                into = leading(optimizer.gradients, active)
                backward(plan.stages, layers, values, grad, into, trained, alpha=1, beta=0)
                optimizer.step(active)
        for after, start, update in zip(weights, origin, affines(plan.stages, updates), strict=True):
            torch.sub(after.weight, start.weight, out=update.weight)
            if after.bias is not None and start.bias is not None and update.bias is not None:
                torch.sub(after.bias, start.bias, out=update.bias)
        return losses

    @torch.no_grad()
    def evaluate(self, data: Sequence[Split], models: Tensor) -> tuple[Tensor, Tensor]:
        """Mean losses and accuracies `(clients, k)` of each model on each client's data; NaN where it has none."""
        models = models.to(self.device, self.dtype)
        k, stages = len(models), self.plan.stages
        layers = affines(stages, models)
        stacked = layers[0].weight.reshape(k * stages[0].outputs, stages[0].inputs)
        bias = None if layers[0].bias is None else layers[0].bias.reshape(-1)
        sums = torch.zeros(2, len(data), k, dtype=self.dtype)
        widest = max(stages[0].inputs, k * max(stage.outputs for stage in stages))
        for owners, xs, ys in self._rows(data, max(64, GROUP_VALUES // widest)):
            x, y = xs.to(self.device, non_blocking=True), ys.to(self.device, non_blocking=True)
            z = nn.functional.linear(x, stacked, bias).view(len(x), k, stages[0].outputs).transpose(0, 1)
            outputs = forward(stages[1:], layers[1:], activate(stages[0].activation, z))[-1]
            loss, right = self._scores(outputs, y)
            # Added up by the processor, because a graphics card would add in any order.
            sums[0].index_add_(0, owners, loss.t().cpu())
            sums[1].index_add_(0, owners, right.t().cpu())
        counts = torch.tensor([len(split) for split in data], dtype=self.dtype).unsqueeze(1)
        # 0/0 is the NaN of a client without samples.
        return sums[0] / counts, sums[1] / counts

    def _scores(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses and hits `(k, rows)` of every sample; targets that are real numbers have no hits but NaN."""
        if self.plan.loss == "softmax":
            labels = y.expand(len(outputs), len(y))
            logs = torch.log_softmax(outputs, -1)
            return -logs.gather(-1, labels.unsqueeze(-1)).squeeze(-1), (outputs.argmax(-1) == y).to(self.dtype)
        loss = (outputs - y).square().mean(-1)
        return loss, torch.full_like(loss, float("nan"))

    def _rows(self, data: Sequence[Split], limit: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The samples of all clients one after another, `limit` at a time: whose they are, inputs and targets."""
        pieces: list[tuple[int, Tensor, Tensor]] = []
        room = limit
        for i, split in enumerate(data):
            n, at = len(split), 0
            x, y = self._x(split, n), self._y(split, n)
            while at < n:
                taken = min(room, n - at)
                pieces.append((i, x[at : at + taken], y[at : at + taken]))
                at, room = at + taken, room - taken
                if room == 0:
                    yield _joined(pieces)
                    pieces, room = [], limit
        if pieces:
            yield _joined(pieces)

    @torch.no_grad()
    def gradient(self, data: Sequence[Split], model: Tensor) -> tuple[Tensor, Tensor]:
        """Full-batch gradients `(clients, d)` and losses `(clients,)` at one model."""
        plan = self.plan
        gradients = torch.zeros(len(data), plan.size, dtype=self.dtype, device=self.device)
        losses = torch.zeros(len(data), dtype=self.dtype, device=self.device)
        layers = affines(plan.stages, model.to(self.device, self.dtype, copy=True))
        everything = [Trained(True, True)] * len(plan.stages)
        samples = [
            Samples(self._x(split, len(split)), self._y(split, len(split)), len(split), 1, len(split)) for split in data
        ]
        for members in self._groups(samples, [False] * len(samples)):
            x = padded([samples[i].x for i in members]).to(self.device, non_blocking=True)
            y = padded([samples[i].y for i in members]).to(self.device, non_blocking=True)
            rows = shares([samples[i].n for i in members], x)
            block = torch.zeros(len(members), plan.size, dtype=self.dtype, device=self.device)
            into = affines(plan.stages, block)
            step = max(1, GROUP_VALUES // (plan.width * len(members)))
            for xs, ys, ws in zip(x.split(step, 1), y.split(step, 1), rows.split(step, 1), strict=True):
                values = forward(plan.stages, layers, xs)
                seen, grad = loss_gradient(plan.loss, values[-1], ys, ws)
                losses[members] += seen
                backward(plan.stages, layers, values, grad, into, everything, alpha=1, beta=1)
            gradients[members] = block
        return gradients.cpu(), losses.cpu()


def _joined(pieces: Sequence[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    owners = torch.tensor([i for i, _, _ in pieces]).repeat_interleave(torch.tensor([len(y) for _, _, y in pieces]))
    if len(pieces) == 1:
        return owners, pieces[0][1], pieces[0][2]
    return owners, torch.cat([x for _, x, _ in pieces]), torch.cat([y for _, _, y in pieces])


def _needs_gradients(training: Training) -> bool:
    return bool(training.momentum or training.weight_decay or training.proximal)


class _Momentum:
    """SGD with momentum, weight decay and the proximal term, on the tensors of `weights` that are trained."""

    def __init__(
        self, weights: Sequence[Affine], origin: Sequence[Affine], training: Training, trained: Sequence[Trained]
    ) -> None:
        self.training = training
        self.gradients = [
            Affine(torch.zeros_like(w.weight), None if w.bias is None else torch.zeros_like(w.bias)) for w in weights
        ]
        moving = [
            (tensor, start, grad)
            for layers in zip(weights, origin, self.gradients, trained, strict=True)
            for tensor, start, grad, moves in zip(*layers, strict=True)
            if moves and tensor is not None and start is not None and grad is not None
        ]
        self.moving: list[tuple[Tensor, Tensor, Tensor]] = moving
        self.velocities = [torch.zeros_like(tensor) for tensor, _, _ in moving] if training.momentum else []

    def step(self, active: int) -> None:
        """Move the first `active` clients' weights along their gradients."""
        how = self.training
        for i, tensors in enumerate(self.moving):
            weights, start, step = (tensor[:active] for tensor in tensors)
            if how.weight_decay:
                step.add_(weights, alpha=how.weight_decay)
            if how.proximal:
                step.add_(weights - start, alpha=how.proximal)
            if how.momentum:
                step = self.velocities[i][:active].mul_(how.momentum).add_(step)
            weights.add_(step, alpha=-how.lr)
