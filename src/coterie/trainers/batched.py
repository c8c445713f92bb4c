"""The trainer for feed-forward networks: several clients in each matrix product, gradients written out by hand.

It is chosen by looking at the module, and gives what `LoopTrainer` gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor, nn

from coterie.federation import Split
from coterie.parameters import Layout
from coterie.trainers.base import OutputSink, Trainer, Training, TrainingJob, add_rows
from coterie.trainers.batching import BatchFeed, BatchOrder, FullFeed, Samples
from coterie.trainers.blocked_steps import (
    FirstWeights,
    cost_in_blocks,
    cost_of_steps,
    rows_in_block,
    train_in_blocks,
)
from coterie.trainers.devices import CPU
from coterie.trainers.joining import Piece, together
from coterie.trainers.kernels import (
    Affine,
    Plan,
    TrainedParts,
    activate,
    affines,
    backward,
    forward,
    leading,
    side_by_side,
    subtract,
)
from coterie.trainers.losses import class_weights_of, predicted_labels, softmax_loss
from coterie.trainers.optimizers import Moving, Optimizer
from coterie.trainers.sample_space import (
    Course,
    GramCache,
    add_updates,
    cost_in_sample_space,
    pays,
    train_batches_in_sample_space,
    train_in_sample_space,
    write_updates,
)
from coterie.trainers.step_losses import ELEMENTWISE, log_probabilities, loss_gradient

GROUP_WEIGHTS = 2**20
"""Weights that are trained together: more would fall out of the cache between two steps."""
GROUP_VALUES = 2**22
"""Input and hidden numbers that are worked on together."""
GROUP_BLOCKS = 2**24
"""Weights or Gram matrices of clients whose steps are taken in blocks: they are read once per block."""
GRAM_BYTES = 2**30
LARGE = 2**16
"""Weights of a first layer from which mini-batches are taken in blocks: smaller ones stay in the cache anyway."""


class Way(IntEnum):
    """How the first layer is trained."""

    STEPS = 0
    """In weights, step by step."""
    BLOCKS = 1
    """In weights, several mini-batches at a time."""
    SAMPLES = 2
    """In sample space, full batch."""
    SAMPLE_BLOCKS = 3
    """In sample space, several mini-batches at a time."""


def choose_way(plan: Plan, s: Samples, whole: bool) -> Way:
    """The way that should take the least time for such samples; `whole`: the first layer's bias is trained too."""
    first = plan.stages[0]
    if s.full:
        return Way.SAMPLES if whole and pays(first, s.n, s.steps) else Way.STEPS
    if first.inputs * first.outputs < LARGE:
        return Way.STEPS
    seen = s.steps * s.batch
    costs = {
        Way.STEPS: seen * cost_of_steps(first, s.batch),
        Way.BLOCKS: seen * cost_in_blocks(first, s.batch),
        Way.SAMPLE_BLOCKS: cost_in_sample_space(first, s.n, s.steps, s.batch) if whole else float("inf"),
    }
    return min(costs, key=lambda way: costs[way])


@dataclass(frozen=True)
class _Group:
    """Jobs that are trained together, by falling number of steps, and their places among all."""

    where: slice | list[int]
    jobs: list[TrainingJob]
    starts: list[Tensor]
    samples: list[Samples]
    trained: list[TrainedParts]
    way: Way

    @property
    def in_sample_space(self) -> bool:
        """Whether the first layer's weights are never formed."""
        return self.way in (Way.SAMPLES, Way.SAMPLE_BLOCKS)

    @property
    def origin(self) -> Tensor:
        """The starts `(b, d)`; one that all share is not copied."""
        shared = len({start.data_ptr() for start in self.starts}) == 1
        return self.starts[0].expand(len(self.starts), -1) if shared else torch.stack(self.starts)

    @property
    def steps(self) -> Tensor:
        """Steps of each job `(b,)`, at least one."""
        return torch.tensor([max(s.steps, 1) for s in self.samples], device=self.starts[0].device)


class BatchedTrainer(Trainer):
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
        device: torch.device = CPU,
    ) -> None:
        self.plan = plan
        self.loss = plan.loss
        self.layout = Layout.of(module)
        self.dtype = dtype
        self.grams = GramCache(gram_bytes)
        self.device = device

    def _x(self, data: Split, n: int) -> Tensor:
        """The inputs of n samples as `(n, inputs)`."""
        return data.x.reshape(n, self.plan.stages[0].inputs).to(self.dtype)

    def _y(self, data: Split, n: int) -> Tensor:
        """The targets of n samples: labels `(n,)` or reals `(n, outputs)`."""
        return data.y if self.loss is softmax_loss else data.y.reshape(n, self.plan.stages[-1].outputs).to(self.dtype)

    @torch.no_grad()
    def _updates(self, jobs: Sequence[TrainingJob], training: Training) -> tuple[Tensor, Tensor]:
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
    def _sum(
        self, jobs: Sequence[TrainingJob], training: Training, weights: Sequence[float], total: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        total = torch.zeros(self.plan.size, dtype=torch.float64, device=self.device)
        norms, losses = torch.empty(2, len(jobs), dtype=torch.float64, device=self.device)
        due = torch.tensor(weights, dtype=torch.float64, device=self.device)
        for group in self._divided(jobs, training):
            where = group.where
            if group.in_sample_space:
                course = self._course(group, training)
                norms[where] = add_updates(course, self.plan, training.lr, due[where], total).double()
                losses[where] = (course.losses / group.steps).double()
            else:
                block = torch.empty(len(group.jobs), self.plan.size, dtype=self.dtype, device=self.device)
                losses[where] = self._train_rows(group, training, block).double()
                norms[where] = add_rows(total, block, due[where].tolist(), self.plan.size)
        return total.cpu(), norms.cpu(), losses.cpu()

    def _divided(self, jobs: Sequence[TrainingJob], training: Training) -> Iterator[_Group]:
        """The jobs in groups that are trained together."""
        samples = [self._samples(job, training) for job in jobs]
        trained = self._trained(training)
        ways = [self._way(s, training, trained) for s in samples]
        # One copy of each vector, so that clients which start from the same one are still recognised.
        starts = {job.start.data_ptr(): job.start.to(self.device, self.dtype) for job in jobs}
        for members in self._groups(samples, ways):
            first, count = members[0], len(members)
            adjacent = members == list(range(first, first + count))
            yield _Group(
                slice(first, first + count) if adjacent else members,
                [jobs[i] for i in members],
                [starts[jobs[i].start.data_ptr()] for i in members],
                [samples[i].on(self.device) for i in members],
                trained,
                ways[first],
            )

    def _train_rows(self, group: _Group, training: Training, updates: Tensor) -> Tensor:
        """Write the group's updates `(b, d)`; the mean losses seen `(b,)`."""
        if group.in_sample_space:
            course = self._course(group, training)
            write_updates(course, self.plan, training.lr, updates)
            return course.losses / group.steps
        if group.way == Way.BLOCKS:
            return self._train_in_blocks(group, training, updates) / group.steps
        return self._train_group(group, training, updates) / group.steps

    def _course(self, group: _Group, training: Training) -> Course:
        grams = [self.grams.of(job.data.x, s.x) for job, s in zip(group.jobs, group.samples, strict=True)]
        if group.way == Way.SAMPLES:
            return train_in_sample_space(self.plan, group.starts, group.samples, grams, training.lr, group.trained)
        order = BatchOrder(group.samples, group.jobs, training)
        return train_batches_in_sample_space(self.plan, group.starts, order, grams, training.lr, group.trained)

    def _train_in_blocks(self, group: _Group, training: Training, updates: Tensor) -> Tensor:
        """Write the updates `(b, d)`, and give the sums of losses `(b,)`; steps are taken in blocks."""
        plan = self.plan
        order = BatchOrder(group.samples, group.jobs, training)
        origin = affines(plan.stages, group.origin)
        rows = rows_in_block(plan.stages[0], order.size)
        first = FirstWeights(origin[0], group.trained[0], order, rows, training.lr)
        above = side_by_side(origin[1:])
        losses = train_in_blocks(plan, first, above, order, rows, training.lr, group.trained)
        subtract([first.layer, *above], origin, into=affines(plan.stages, updates))
        return losses

    def _samples(self, job: TrainingJob, training: Training) -> Samples:
        n = len(job.data)
        batch = n if training.batch_size is None else min(training.batch_size, n)
        weights = None
        if training.class_weights is not None:
            labels = job.data.y.reshape(-1).long()
            weights = class_weights_of(training.class_weights, labels).to(self.dtype)[labels]
        factors = None if job.weights is None else job.weights.to(self.dtype)
        return Samples(self._x(job.data, n), self._y(job.data, n), n, training.batches(n), batch, weights, factors)

    def _trained(self, training: Training) -> list[TrainedParts]:
        spans = self.layout.select(training.layers) if training.layers else (slice(0, self.plan.size),)

        def inside(place: slice | None) -> bool:
            return place is not None and any(s.start <= place.start and place.stop <= s.stop for s in spans)

        return [TrainedParts(inside(stage.weight), inside(stage.bias)) for stage in self.plan.stages]

    def _way(self, s: Samples, training: Training, trained: Sequence[TrainedParts]) -> Way:
        by_steps = not training.linear or training.weight_decay or training.augment is not None
        if by_steps or not trained[0].weight:
            return Way.STEPS
        return choose_way(self.plan, s, trained[0].bias or self.plan.stages[0].bias is None)

    def _groups(self, samples: Sequence[Samples], ways: Sequence[Way]) -> Iterator[list[int]]:
        """Positions of clients to train together: of one way and like size, by falling number of steps."""
        sizes = [s.n if way == Way.SAMPLE_BLOCKS else s.batch for s, way in zip(samples, ways, strict=True)]
        order = sorted(range(len(samples)), key=lambda i: (ways[i], -sizes[i], i))
        start = 0
        while start < len(order):
            way, size = ways[order[start]], sizes[order[start]]
            limit = self._most_together(way, size)
            stop = start + 1
            while stop < min(len(order), start + limit) and ways[order[stop]] == way and 2 * sizes[order[stop]] > size:
                stop += 1
            yield sorted(order[start:stop], key=lambda i: -samples[i].steps)
            start = stop

    def _most_together(self, way: Way, size: int) -> int:
        """How many clients of that many samples, or with batches of that size, are trained together."""
        width, weights = self.plan.width, self.plan.size
        if way == Way.STEPS:
            return max(1, min(GROUP_VALUES // (size * width), GROUP_WEIGHTS // weights))
        if way == Way.BLOCKS:
            rows = rows_in_block(self.plan.stages[0], size)
            return max(1, min(GROUP_VALUES // (rows * width), GROUP_BLOCKS // weights))
        values = size * max(width, size)
        return max(1, (GROUP_VALUES if way == Way.SAMPLES else GROUP_BLOCKS) // values)

    def _train_group(self, group: _Group, training: Training, updates: Tensor) -> Tensor:
        """Write the updates `(b, d)`, and give the sums of losses `(b,)`."""
        plan, jobs, samples, trained = self.plan, group.jobs, group.samples, group.trained
        feed: FullFeed | BatchFeed
        outputs = plan.stages[-1].outputs
        if training.augment is None and all(s.full for s in samples):
            feed = FullFeed(samples, plan.loss, outputs)
        else:
            feed = BatchFeed(samples, jobs, training, plan.loss, outputs)
        origin = affines(plan.stages, group.origin)
        weights = side_by_side(origin)
        gradients: list[Affine] = []
        optimizer = None
        if not training.linear or training.weight_decay:
            gradients = [
                Affine(torch.zeros_like(w.weight), None if w.bias is None else torch.zeros_like(w.bias))
                for w in weights
            ]
            optimizer = self._optimizer(group, training, weights, gradients, origin)
        losses = updates.new_zeros(len(jobs))
        layers: list[Affine] = []
        before = -1
        for t in range(samples[0].steps):
            active = sum(s.steps > t for s in samples) if samples[-1].steps <= t else len(samples)
            if active != before:
                layers, before = leading(weights, active), active
            x, targets = feed.step(t, active)
            values = forward(plan.stages, layers, x)
            seen, grad = loss_gradient(plan.loss, values[-1], targets)
            losses[:active].add_(seen)
            if optimizer is None:
                backward(plan.stages, layers, values, grad, layers, trained, alpha=-training.lr, beta=1)
            else:
                into = leading(gradients, active)
                backward(plan.stages, layers, values, grad, into, trained, alpha=1, beta=0)
                optimizer.step(active)
        if optimizer is not None:
            optimizer.remember()
        subtract(weights, origin, into=affines(plan.stages, updates))
        return losses

    def _optimizer(
        self,
        group: _Group,
        training: Training,
        weights: Sequence[Affine],
        gradients: Sequence[Affine],
        origin: Sequence[Affine],
    ) -> Optimizer:
        """What moves the group's trained tensors along their gradients."""
        centres = [job.centre.to(self.device, self.dtype) for job in group.jobs if job.centre is not None]
        pulled_to = affines(self.plan.stages, torch.stack(centres)) if centres else origin
        moving = [
            Moving(place, *tensors)
            for stage, *layers, parts in zip(
                self.plan.stages, weights, gradients, pulled_to, group.trained, strict=True
            )
            for place, *tensors, trained in zip((stage.weight, stage.bias), *layers, parts, strict=True)
            if trained and place is not None
        ]
        memories = [job.memory for job in group.jobs if job.memory is not None]
        return Optimizer(training, moving, memories or None)

    @torch.no_grad()
    def evaluate(
        self, data: Sequence[Split], models: Tensor, outputs_to: OutputSink | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean losses and accuracies `(clients, k)` of each model on each client's data; NaN where it has none."""
        models = models.to(self.device, self.dtype)
        k, stages = len(models), self.plan.stages
        layers = affines(stages, models)
        stacked = layers[0].weight.reshape(k * stages[0].outputs, stages[0].inputs)
        bias = None if layers[0].bias is None else layers[0].bias.reshape(-1)
        sums = torch.zeros(2, len(data), k, dtype=self.dtype)
        labelled = bool(data) and not data[0].y.is_floating_point()
        widest = max(stages[0].inputs, k * max(stage.outputs for stage in stages))
        for owners, xs, ys in self._rows(data, max(64, GROUP_VALUES // widest)):
            x, y = xs.to(self.device, non_blocking=True), ys.to(self.device, non_blocking=True)
            z = nn.functional.linear(x, stacked, bias).view(len(x), k, stages[0].outputs).transpose(0, 1)
            outputs = self._normalised(forward(stages[1:], layers[1:], activate(stages[0].activation, z))[-1])
            if outputs_to is not None:
                _hand_out(outputs.cpu(), owners, outputs_to)
            loss, right = self._scores(outputs, y, labelled)
            # Added up by the processor, because a graphics card would add in any order.
            sums[0].index_add_(0, owners, loss.t().cpu())
            sums[1].index_add_(0, owners, right.t().cpu())
        counts = torch.tensor([len(split) for split in data], dtype=self.dtype).unsqueeze(1)
        # 0/0 is the NaN of a client without samples.
        return sums[0] / counts, sums[1] / counts

    def _scores(self, outputs: Tensor, y: Tensor, labelled: bool) -> tuple[Tensor, Tensor]:
        """Losses and hits `(k, rows)` of every sample; targets that are not labels have no hits but NaN."""
        if self.loss is softmax_loss:
            labels = y.expand(len(outputs), len(y))
            logs = log_probabilities(outputs)
            return -logs.gather(-1, labels.unsqueeze(-1)).squeeze(-1), (outputs.argmax(-1) == y).to(self.dtype)
        loss = ELEMENTWISE[self.loss](outputs, y)[0].mean(-1)
        if labelled:
            return loss, (predicted_labels(outputs) == y[..., 0]).to(self.dtype)
        return loss, torch.full_like(loss, float("nan"))

    def _rows(self, data: Sequence[Split], limit: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The samples of all clients one after another, `limit` at a time: whose they are, inputs and targets."""
        pieces: list[Piece] = []
        room = limit
        for i, split in enumerate(data):
            n, at = len(split), 0
            x, y = self._x(split, n), self._y(split, n)
            while at < n:
                taken = min(room, n - at)
                pieces.append(Piece(i, x[at : at + taken], y[at : at + taken]))
                at, room = at + taken, room - taken
                if room == 0:
                    yield together(pieces)
                    pieces, room = [], limit
        if pieces:
            yield together(pieces)

    @torch.no_grad()
    def outputs(self, data: Split, models: Tensor) -> Tensor:
        """What the models `(k, d)` say of a client's samples: `(k, n, outputs)`."""
        layers = affines(self.plan.stages, models.to(self.device, self.dtype, copy=True))
        x = self._x(data, len(data)).to(self.device).expand(len(models), -1, -1)
        rows = max(64, GROUP_VALUES // (self.plan.width * len(models)))
        outputs = torch.cat([forward(self.plan.stages, layers, part)[-1] for part in x.split(rows, dim=1)], 1)
        return self._normalised(outputs).cpu()

    def _normalised(self, outputs: Tensor) -> Tensor:
        """The outputs as the module gives them; a loss of logits is the same for both."""
        return torch.log_softmax(outputs, -1) if self.plan.normalises else outputs

    @torch.no_grad()
    def gradient(self, data: Sequence[Split], model: Tensor) -> tuple[Tensor, Tensor]:
        """Full-batch gradients `(clients, d)` and losses `(clients,)` at one model."""
        plan = self.plan
        gradients = torch.zeros(len(data), plan.size, dtype=self.dtype, device=self.device)
        losses = torch.zeros(len(data), dtype=self.dtype, device=self.device)
        layers = affines(plan.stages, model.to(self.device, self.dtype, copy=True))
        everything = [TrainedParts(True, True)] * len(plan.stages)
        samples = [
            Samples(self._x(split, len(split)), self._y(split, len(split)), len(split), 1, len(split)) for split in data
        ]
        for members in self._groups(samples, [Way.STEPS] * len(samples)):
            feed = FullFeed([samples[i].on(self.device) for i in members], plan.loss, plan.stages[-1].outputs)
            block = torch.zeros(len(members), plan.size, dtype=self.dtype, device=self.device)
            into = affines(plan.stages, block)
            step = max(1, GROUP_VALUES // (plan.width * len(members)))
            for xs, targets in zip(feed.x.split(step, 1), feed.targets.steps(step), strict=True):
                values = forward(plan.stages, layers, xs)
                seen, grad = loss_gradient(plan.loss, values[-1], targets)
                losses[members] += seen
                backward(plan.stages, layers, values, grad, into, everything, alpha=1, beta=1)
            gradients[members] = block
        return gradients.cpu(), losses.cpu()


def _hand_out(outputs: Tensor, owners: Tensor, sink: OutputSink) -> None:
    """Give the outputs `(k, rows, ...)` of rows that belong to `owners: (rows,)`, those of one owner in a row."""
    clients, counts = torch.unique_consecutive(owners, return_counts=True)
    for client, rows in zip(clients.tolist(), outputs.split(counts.tolist(), 1), strict=True):
        for j, own in enumerate(rows):
            sink(client, j, own)
