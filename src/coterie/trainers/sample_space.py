"""Training of a wide first layer in sample space, on full batches or in mini-batches.

Gradient steps on a first layer W move its pre-activations Z = XWᵀ + b by −lr (XXᵀ + 1) ΣG, where the G are the
gradients at Z. With fewer samples than inputs it is cheaper to keep ΣG (n × outputs) than W (outputs × inputs): W
changes by −lr (ΣG)ᵀ X, formed once at the end. A mini-batch adds to its own rows of ΣG alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.parameters import gather, scatter
from coterie.trainers.batching import BatchOrder, FullFeed, Samples, padded
from coterie.trainers.blocked_steps import above_first, cost_within, rows_in_block, train_in_blocks
from coterie.trainers.kernels import (
    Plan,
    Stage,
    TrainedParts,
    activate,
    affines,
    backward,
    forward,
    leading,
    side_by_side,
    subtract,
    through_activation,
)
from coterie.trainers.step_losses import loss_gradient


def pays(stage: Stage, samples: int, steps: int) -> bool:
    """Whether sample space takes fewer operations than weights, even when the Gram matrix must be computed."""
    n, inputs, outputs = samples, stage.inputs, stage.outputs
    in_weights = 2 * steps * n * inputs * outputs
    in_samples = n * n * inputs + steps * n * n * outputs + 2 * n * inputs * outputs
    return n < inputs and steps > 1 and in_samples < in_weights


def cost_in_sample_space(stage: Stage, samples: int, steps: int, batch: int) -> float:
    """What mini-batch training costs in the first layer of one client: multiplications at full speed.

    Half of the Gram matrix counts: it is kept for the client's next rounds, as far as memory goes.
    """
    n, inputs, outputs = samples, stage.inputs, stage.outputs
    by_step = n * outputs + cost_within(stage, rows_in_block(stage, batch), batch)
    return 2 * n * inputs * outputs + n * n * inputs / 2 + steps * batch * by_step


class GramCache:
    """Gram matrices XXᵀ of the clients' inputs, kept for the life of those inputs within a memory budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._kept: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def of(self, owner: Tensor, x: Tensor) -> Tensor:
        """XXᵀ `(n, n)` of `x: (n, inputs)`, kept as long as the client's own tensor `owner` lives."""
        kept = self._kept.get(id(owner))
        if kept is not None and kept[1].dtype == x.dtype:
            return kept[1]
        gram = torch.mm(x, x.t())
        size = gram.numel() * gram.element_size()
        # Clients come round and round, so to drop one for another would lose both: what came first stays.
        if kept is None and self.bytes + size <= self.budget:
            key = id(owner)
            self._kept[key] = (weakref.ref(owner, lambda _: self._drop(key)), gram)
            self.bytes += size
        return gram

    def _drop(self, key: int) -> None:
        _, gram = self._kept.pop(key)
        self.bytes -= gram.numel() * gram.element_size()


class Course(NamedTuple):
    """Where training in sample space ended: all that the updates are made of."""

    total: Tensor
    """Sums of the gradients at the first stage's values `(b, n, outputs)`."""
    x: Tensor
    """Inputs `(b, n, inputs)`."""
    gram: Tensor
    """XXᵀ (+ 1 for the bias) `(b, n, n)`."""
    above: Tensor
    """Updates of everything but the first stage `(b, d − first)`."""
    losses: Tensor
    """Sums of losses `(b,)`."""


def train_in_sample_space(
    plan: Plan,
    starts: Sequence[Tensor],
    samples: Sequence[Samples],
    grams: Sequence[Tensor],
    lr: float,
    trained: Sequence[TrainedParts],
) -> Course:
    """Full-batch SGD from `starts`, b vectors `(d,)`, without forming the first stage's weights.

    The samples are sorted by falling number of steps, and the first stage is trained.
    """
    first = plan.stages[0]
    feed = FullFeed(samples, plan.loss, plan.stages[-1].outputs)
    b, n, _inputs = feed.x.shape
    gram = _padded_grams(grams, n, first.bias is not None)
    z = _first_values(first, starts, feed.x)
    total, room = torch.zeros_like(z), torch.empty_like(z)
    above, shifted = _above(plan, starts)
    origin = affines(shifted, above)
    weights = side_by_side(origin)
    losses = z.new_zeros(b)
    for t in range(samples[0].steps):
        active = sum(s.steps > t for s in samples)
        layers = leading(weights, active)
        _x, targets = feed.step(t, active)
        now = room[:active]
        if t:
            torch.baddbmm(z[:active], gram[:active], total[:active], alpha=-lr, out=now)
        else:
            now.copy_(z[:active])
        hidden = activate(first.activation, now)
        values = forward(shifted, layers, hidden)
        seen, grad = loss_gradient(plan.loss, values[-1], targets)
        losses[:active].add_(seen)
        grad = backward(shifted, layers, values, grad, layers, trained[1:], alpha=-lr, beta=1, to_input=True)
        total[:active] += through_activation(first.activation, grad, hidden)
    subtract(weights, origin, into=origin)
    return Course(total, feed.x, gram, above, losses)


def train_batches_in_sample_space(
    plan: Plan,
    starts: Sequence[Tensor],
    order: BatchOrder,
    grams: Sequence[Tensor],
    lr: float,
    trained: Sequence[TrainedParts],
) -> Course:
    """Mini-batch SGD from `starts`, b vectors `(d,)`, without forming the first stage's weights.

    The order's samples are sorted by falling number of steps, and the first stage is trained.
    """
    first = plan.stages[0]
    x = padded([s.x for s in order.samples])
    gram = _padded_grams(grams, x.shape[1], first.bias is not None)
    sums = FirstSums(_first_values(first, starts, x), gram, order, lr)
    above, shifted = _above(plan, starts)
    origin = affines(shifted, above)
    weights = side_by_side(origin)
    rows = rows_in_block(first, order.size)
    losses = train_in_blocks(plan, sums, weights, order, rows, lr, trained)
    subtract(weights, origin, into=origin)
    return Course(sums.total, x, gram, above, losses)


class FirstSums:
    """The first layer of each client as sums of the gradients at its samples' values `(b, n, outputs)`."""

    def __init__(self, start: Tensor, gram: Tensor, order: BatchOrder, lr: float) -> None:
        b, self.n, outputs = start.shape
        self.start, self.gram = start.view(b * self.n, outputs), gram.view(b * self.n, self.n)
        self.total = torch.zeros_like(start)
        self.order, self.lr = order, lr
        self.places = (order.index + torch.arange(b, device=start.device).unsqueeze(1) * self.n).contiguous()
        self.now = self.places
        self.moved = False

    def open(self, places: slice, active: int) -> tuple[Tensor, Tensor]:
        """The values of the block's samples now, and the part of the Gram matrices that is theirs."""
        here = self.order.index[:active, places]
        self.now = self.places[:active, places].reshape(-1)
        rows = here.shape[1]
        near = self.gram.index_select(0, self.now).view(active, rows, self.n)
        values = self.start.index_select(0, self.now).view(active, rows, -1)
        if self.moved:
            values.baddbmm_(near, self.total[:active], alpha=-self.lr)
        return values, near.gather(2, here.unsqueeze(1).expand(-1, rows, -1))

    def close(self, sums: Tensor) -> None:
        """Add the block's gradients to those of its samples."""
        self.total.view(len(self.start), -1).index_add_(0, self.now, sums.reshape(len(self.now), -1))
        self.moved = True


def write_updates(course: Course, plan: Plan, lr: float, updates: Tensor) -> None:
    """Write every client's update to its row of `updates: (b, d)`."""
    first = plan.stages[0]
    own = affines([first], updates)[0]
    own.weight.baddbmm_(course.total.transpose(1, 2), course.x, alpha=-lr, beta=0)
    if own.bias is not None:
        torch.sum(course.total, 1, out=own.bias).mul_(-lr)
    scatter(updates, above_first(plan)[0], course.above)


def add_updates(course: Course, plan: Plan, lr: float, weights: Tensor, result: Tensor) -> Tensor:
    """Add the weighted finite updates to the float64 `result: (d,)` with one product; return all norms `(b,)`.

    ‖XᵀS‖² + ‖Sᵀ1‖² is the sum of S ∘ (XXᵀ + 1)S, so that no update is formed for its norm either.
    """
    first = plan.stages[0]
    squares = (torch.bmm(course.gram, course.total) * course.total).sum((1, 2)) * lr**2
    squares += course.above.square().sum(1)
    norms = squares.clamp_min_(0).sqrt_()
    finite = norms.isfinite()
    total, x, above, weights = course.total, course.x, course.above, weights.to(norms.dtype)
    if not finite.all():
        total, x, above, weights = total[finite], x[finite], above[finite], weights[finite]
    total = total * weights[:, None, None]
    own = affines([first], result)[0]
    own.weight.add_(torch.mm(total.flatten(0, 1).t(), x.flatten(0, 1)), alpha=-lr)
    if own.bias is not None:
        own.bias.add_(total.sum((0, 1)), alpha=-lr)
    spans = above_first(plan)[0]
    for span, moved in zip(spans, (weights @ above).split([s.stop - s.start for s in spans]), strict=True):
        result[span] += moved
    return norms


def _above(plan: Plan, starts: Sequence[Tensor]) -> tuple[Tensor, list[Stage]]:
    """What is beside the first stage in each of the vectors `(b, d − first)`, and the stages there."""
    spans, stages = above_first(plan)
    return torch.stack([gather(start, spans) for start in starts]), stages


def _padded_grams(grams: Sequence[Tensor], n: int, bias: bool) -> Tensor:
    """The matrices XXᵀ (+ 1 for the bias) as one `(b, n, n)`; what is beyond a client's samples never counts."""
    block = grams[0].new_zeros(len(grams), n, n)
    for row, gram in zip(block, grams, strict=True):
        row[: len(gram), : len(gram)] = gram
    return block.add_(1) if bias else block


def _first_values(stage: Stage, starts: Sequence[Tensor], x: Tensor) -> Tensor:
    """The first stage's values before activation `(b, n, outputs)`: one product for each distinct start."""
    by_start: dict[int, list[int]] = {}
    for i, start in enumerate(starts):
        by_start.setdefault(start.data_ptr(), []).append(i)
    if len(by_start) == 1:
        return torch.nn.functional.linear(x, *affines([stage], starts[0])[0])
    z = x.new_empty(*x.shape[:2], stage.outputs)
    for members in by_start.values():
        weight, bias = affines([stage], starts[members[0]])[0]
        z[members] = torch.nn.functional.linear(x[members], weight, bias)
    return z
