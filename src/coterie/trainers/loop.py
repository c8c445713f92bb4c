"""The trainer for any module: one client after another, without DataLoader, torch.optim or state_dict copies.

It is also the reference: every faster trainer is tested against it in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn

from coterie.errors import ModelError, users_code
from coterie.federation import Split
from coterie.parameters import Layout
from coterie.trainers.augment import augmentation
from coterie.trainers.base import OutputSink, Trainer, Training, TrainingJob, add_row, norm_of
from coterie.trainers.batching import batches
from coterie.trainers.devices import CPU
from coterie.trainers.joining import independent_samples, passes, together
from coterie.trainers.losses import (
    LOSSES,
    Loss,
    class_weights_of,
    hits,
    sample_losses,
    sample_weighted_loss,
    weighted_loss,
)
from coterie.trainers.low_rank import FactoredLinear, apart, factor_layers, worth_keeping_apart
from coterie.trainers.optimizers import Moving, Optimizer
from coterie.trainers.pure_code import hooked
from coterie.trainers.recognition import sequentials

EVALUATION_ROWS = 512
"""Samples in one forward pass of an evaluation."""


class LoopTrainer(Trainer):
    """Trains and evaluates a private copy of `module` whose tensors are views of one flat vector.

    It computes on `device`; what it is given and what it returns is in the processor's memory. With a `sample` it tries
    whether samples of several clients can be evaluated in one pass.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        dtype: torch.dtype = torch.float32,
        *,
        bf16: bool = False,
        device: torch.device = CPU,
        sample: Split | None = None,
    ) -> None:
        self.device = device
        self.adds_in_place = device == CPU  # pieces would be too many transfers from a card
        self.module = copy.deepcopy(module).to(device, dtype)
        self.layout = Layout.of(self.module)
        self.loss = loss
        self.dtype = dtype
        self.bf16 = bf16
        self.flat = self.layout.read(self.module, dtype).to(device)
        pool_before_relu(self.module)
        self.factored = factor_layers(self.module)
        self._counters = self._bind()
        self.channels_last = self._likes_channels_last(sample)
        self.module.eval()
        self.joins = sample is not None and independent_samples(self.module, self._trial_outputs, sample.x)

    def _bind(self) -> list[tuple[slice, Tensor]]:
        """Make the module's tensors views of `flat`; integers stay apart."""
        self.parameters = dict(self.module.named_parameters())
        owners = dict(self.module.named_modules())
        counters = []
        for entry in self.layout.entries:
            view = self.flat[entry.start : entry.stop].view(entry.shape)
            if not entry.buffer:
                self.parameters[entry.name].data = view
                continue
            owner, _, leaf = entry.name.rpartition(".")
            buffer = self.module.get_buffer(entry.name)
            if buffer.is_floating_point():
                owners[owner]._buffers[leaf] = view
            else:
                counters.append((slice(entry.start, entry.stop), buffer))
        return counters

    def _likes_channels_last(self, sample: Split | None) -> bool:
        """Whether images are better laid out pixel by pixel: where there are convolutions.

        A module of the user's own is tried out on two images like the sample, because `x.view(...)` fails on such.
        """
        parts = list(self.module.modules())
        if not any(type(part) is nn.Conv2d for part in parts):
            return False
        if all(type(part).__module__.startswith(("torch.nn.modules.", "coterie.trainers.")) for part in parts):
            return True
        if sample is None or sample.x.ndim != 4:
            return False
        start, self.channels_last = self.flat.clone(), True
        images = self._placed(sample.x[:1]).expand(2, -1, -1, -1)
        try:
            with torch.random.fork_rng(devices=[]):
                for training in (True, False):
                    self.module.train(training)
                    trained = [p for p in self.parameters.values() if p.requires_grad]
                    torch.autograd.grad(self._outputs(images).sum(), trained, allow_unused=True)
        except (ModelError, RuntimeError):
            return False
        finally:
            self._load(start)  # statistics of the images are no part of the model
        return True

    def _load(self, vector: Tensor) -> None:
        with torch.no_grad():
            self.flat.copy_(vector)
            for span, counter in self._counters:
                counter.copy_(vector[span].round().view(counter.shape))

    def _store_counters(self) -> None:
        with torch.no_grad():
            for span, counter in self._counters:
                self.flat[span] = counter.reshape(-1).to(self.dtype)

    def _placed(self, values: Tensor) -> Tensor:
        """Inputs or targets on the trainer's device, reals in its precision."""
        values = values.to(self.device, non_blocking=True)
        return values.to(self.dtype) if values.is_floating_point() else values

    def _trial_outputs(self, x: Tensor) -> Tensor:
        return self._outputs(self._placed(x))

    def _outputs(self, x: Tensor) -> Tensor:
        if self.channels_last and x.ndim == 4:
            # Not `contiguous`: images of one channel would stay as they are, and count as laid out channel by channel.
            x = torch.empty_like(x, memory_format=torch.channels_last).copy_(x)
        with self._precision(), users_code("the model"):
            outputs: Tensor = self.module(x)
        return outputs.to(self.dtype)

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()

    def _loss_of(self, outputs: Tensor, y: Tensor) -> Tensor:
        with users_code("the loss"):
            return self.loss(outputs, y)

    def _updates(self, jobs: Sequence[TrainingJob], training: Training) -> tuple[Tensor, Tensor]:
        updates = torch.empty(len(jobs), self.layout.size, dtype=self.dtype, device=self.device)
        losses = torch.empty(len(jobs), dtype=self.dtype)
        for i, (start, loss) in enumerate(self._trained_in_turn(jobs, training)):
            torch.sub(self.flat, start, out=updates[i])
            losses[i] = loss
        return updates.cpu(), losses

    def _sum(
        self, jobs: Sequence[TrainingJob], training: Training, weights: Sequence[float], total: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As every trainer's; no update is ever written out, so that a large model is read only as often as it must."""
        if not self.adds_in_place:
            return super()._sum(jobs, training, weights, total)
        total = torch.zeros(self.layout.size, dtype=torch.float64) if total is None else total
        norms, losses = torch.empty(len(jobs), dtype=torch.float64), torch.empty(len(jobs), dtype=self.dtype)
        for i, (start, loss) in enumerate(self._trained_in_turn(jobs, training)):
            losses[i] = loss
            norms[i] = norm = norm_of(self.flat, start, self.layout.trainable)
            if math.isfinite(norm):
                add_row(total, self.flat, weights[i], start)
        return total, norms, losses.double()

    def _trained_in_turn(self, jobs: Sequence[TrainingJob], training: Training) -> Iterator[tuple[Tensor, float]]:
        """What each job started from `(d,)` and the mean loss it saw; where it came to is in `flat` meanwhile."""
        self.module.train()
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), self._frozen(training.layers):
            for job in jobs:
                self._seed(job.seed)
                start = job.start.to(self.device, self.dtype)
                yield start, self._train_one(job._replace(start=start), training)

    def _seed(self, seed: int) -> None:
        """Seed the generators that the module draws from; `torch.manual_seed` would note a stack for each backend."""
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    @contextmanager
    def _frozen(self, layers: tuple[str, ...]) -> Iterator[None]:
        """Ask for no gradient inside of parameters that are not among `layers` (empty: all are)."""
        others = self.layout.complement(self.layout.select(layers)) if layers else ()
        frozen = [parameter for parameter in self._at(others) if parameter.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)

    def _train_one(self, job: TrainingJob, training: Training) -> float:
        self._load(job.start)
        x, y = self._placed(job.data.x), self._placed(job.data.y)
        places, layers = self._divide(training, len(y))
        loss_of = self._training_loss(job, training, y)
        augment = augmentation(training, job.seed)
        parameters = self._at(places)
        # A plain step along the gradients needs no place for them in the vector.
        optimizer = None if training.linear and not training.weight_decay else self._optimizer(job, training, places)
        inputs = [p for p in parameters if p.requires_grad] + [layer.weight for layer in layers]
        total, steps = torch.zeros((), dtype=torch.float64, device=self.device), 0
        with apart(layers):
            for index in batches(len(y), training, job.seed, self.device):
                loss = loss_of(self._outputs(augment(x[index]) if augment else x[index]), index)
                follows = loss.requires_grad and bool(inputs)
                # Layers that keep their steps apart note them when their gradient is asked for, and give none.
                gradients = torch.autograd.grad(loss, inputs, allow_unused=True) if follows else [None] * len(inputs)
                total += loss.detach()  # reading it here would wait for the device in every step
                steps += 1
                with torch.no_grad():
                    if optimizer is None:
                        _descend(inputs, gradients, training.lr)
                    else:
                        self._put_gradients(places, gradients)
                        optimizer.step(1)
                    for layer in layers:
                        layer.step(training)
                del gradients  # or they would lie beside those of the next step
        if optimizer is not None:
            optimizer.remember()
        self._store_counters()
        return float(total) / max(steps, 1)

    def _at(self, places: Sequence[slice]) -> list[Tensor]:
        """The parameters at these places of the flat vector, in order."""
        return [
            self.parameters[entry.name]
            for entry in self.layout.entries
            if not entry.buffer and any(place.start <= entry.start < place.stop for place in places)
        ]

    @cached_property
    def grad(self) -> Tensor:
        """Room for the gradients of the trainable numbers `(trainable,)`."""
        return torch.zeros(self.layout.trainable, dtype=self.dtype, device=self.device)

    def _put_gradients(self, places: Sequence[slice], gradients: Sequence[Tensor | None]) -> None:
        """Write to `grad` the gradients of the parameters at these places that have one, in order; else zero."""
        found = iter(gradients)
        for parameter in self._at(places):
            start = parameter.storage_offset()
            room = self.grad[start : start + parameter.numel()]
            gradient = next(found) if parameter.requires_grad else None
            if gradient is None:
                room.zero_()
            else:
                room.view(parameter.shape).copy_(gradient)

    def _optimizer(self, job: TrainingJob, training: Training, places: Sequence[slice]) -> Optimizer:
        """What moves the numbers at these places of the flat vector; to it, one client is several of which one."""
        centre = job.start if job.centre is None else job.centre.to(self.device, self.dtype)
        moving = [Moving(p, self.flat[None, p], self.grad[None, p], centre[None, p]) for p in places]
        return Optimizer(training, moving, None if job.memory is None else [job.memory])

    def _training_loss(
        self, job: TrainingJob, training: Training, y: Tensor
    ) -> Callable[[Tensor, Tensor | slice], Tensor]:
        """The loss that training lowers for a client with the targets `y`, of outputs for the samples at an index."""
        classes = None
        if training.class_weights is not None:
            classes = class_weights_of(training.class_weights, y).to(self.device, self.dtype)
        if job.weights is not None:
            weights = job.weights.to(self.device, self.dtype)

            def weighted(outputs: Tensor, index: Tensor | slice) -> Tensor:
                with users_code("the loss"):
                    return sample_weighted_loss(self.loss, outputs, y[index], weights[index], classes)

            return weighted
        loss = self._loss_of if classes is None else weighted_loss(self.loss, classes)
        return lambda outputs, index: loss(outputs, y[index])

    def _divide(self, training: Training, samples: int) -> tuple[list[slice], list[FactoredLinear]]:
        """The places of the vector that are trained number by number, and the layers that keep their steps apart."""
        trained = self.layout.select(training.layers) if training.layers else (slice(0, self.layout.size),)
        left_out = list(self.layout.complement(trained))
        layers = []
        for entry in self.layout.entries:
            layer = self.factored.get(entry.name)
            chosen = any(span.start <= entry.start < span.stop for span in trained)
            if layer is not None and chosen and worth_keeping_apart(layer, training, samples):
                layers.append(layer)
                left_out.append(slice(entry.start, entry.stop))
        end = self.layout.trainable
        places = [slice(s.start, min(s.stop, end)) for s in self.layout.complement(left_out) if s.start < end]
        return places, layers

    def evaluate(
        self, data: Sequence[Split], models: Tensor, outputs_to: OutputSink | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean losses and accuracies `(clients, k)` of each model on each client's data; NaN where it has none."""
        sums = torch.zeros(2, len(models), len(data), dtype=torch.float64)
        self.module.eval()
        with torch.no_grad():
            for j, model in enumerate(models):
                self._load(model)
                for pieces in passes(data, EVALUATION_ROWS, self.joins):
                    owners, x, y = together(pieces)
                    outputs = self._outputs(self._placed(x))
                    counts = [len(piece.y) for piece in pieces]
                    if outputs_to is not None:
                        for piece, own in zip(pieces, outputs.cpu().split(counts), strict=True):
                            outputs_to(piece.client, j, own)
                    targets = self._placed(y)
                    sums[0, j].index_add_(0, owners, self._sample_losses(outputs, targets, counts))
                    sums[1, j].index_add_(0, owners, hits(outputs, targets, self.loss).cpu().double())
        means = sums / torch.tensor([len(split) for split in data])  # 0/0 is the NaN of a client without samples
        losses, accuracies = means.to(self.dtype).transpose(1, 2)
        return losses, accuracies

    def _sample_losses(self, outputs: Tensor, targets: Tensor, counts: Sequence[int]) -> Tensor:
        """The loss of each sample `(n,)`; under a loss of the user's own that of its piece, for it may be no mean."""
        if self.loss in LOSSES.values():
            return sample_losses(self.loss, outputs[None], targets)[0].cpu().double()
        pieces = zip(outputs.split(list(counts)), targets.split(list(counts)), strict=True)
        means = torch.tensor([float(self._loss_of(*piece)) for piece in pieces], dtype=torch.float64)
        return means.repeat_interleave(torch.tensor(counts))

    def outputs(self, data: Split, models: Tensor) -> Tensor:
        """What the models `(k, d)` say of a client's samples: `(k, n, ..., outputs)`, in evaluation mode."""
        self.module.eval()
        return torch.stack([self._outputs_of(data, model) for model in models])

    def _outputs_of(self, data: Split, model: Tensor) -> Tensor:
        self._load(model)
        with torch.no_grad():
            return torch.cat([self._outputs(self._placed(x)) for x in data.x.split(EVALUATION_ROWS)]).cpu()

    def gradient(self, data: Sequence[Split], model: Tensor) -> tuple[Tensor, Tensor]:
        """Full-batch gradients `(clients, d)` and losses `(clients,)` at one model, in evaluation mode."""
        gradients = torch.zeros(len(data), self.layout.size, dtype=self.dtype)
        totals = torch.zeros(len(data), dtype=torch.float64)
        self.module.eval()
        self._load(model)
        trained = [(e, p) for e in self.layout.entries if (p := self.parameters.get(e.name)) is not None]
        trained = [(entry, parameter) for entry, parameter in trained if parameter.requires_grad]
        for i, split in enumerate(data):
            for x, y in zip(split.x.split(EVALUATION_ROWS), split.y.split(EVALUATION_ROWS), strict=True):
                outputs = self._outputs(self._placed(x))
                loss = self._loss_of(outputs, self._placed(y)) * (len(y) / len(split))
                found = torch.autograd.grad(loss, [parameter for _, parameter in trained], allow_unused=True)
                for (entry, _), gradient in zip(trained, found, strict=True):
                    if gradient is not None:
                        gradients[i, entry.start : entry.stop] += gradient.reshape(-1).to(gradients.device)
                totals[i] += float(loss.detach())
        return gradients, totals.to(self.dtype)


def _descend(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], lr: float) -> None:
    """A step of plain SGD of those parameters that have a gradient."""
    moving = [(p, gradient) for p, gradient in zip(parameters, gradients, strict=True) if gradient is not None]
    if moving:
        torch._foreach_add_(*map(list, zip(*moving, strict=True)), alpha=-lr)


def pool_before_relu(module: nn.Module) -> None:
    """Exchange every ReLU with the MaxPool2d that follows it, in place, in nested Sequentials.

    The largest of some numbers, cut off at zero, is the largest of the numbers cut off at zero: the same values, and
    the same gradient to the bit, from a quarter of the work.
    """
    for _, parts in sequentials(module):
        for first, second in pairwise(list(parts)):
            relu, pool = parts[first], parts[second]
            if type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d and not (hooked(relu) or hooked(pool)):
                parts[first], parts[second] = pool, relu
