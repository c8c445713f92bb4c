"""Full-batch training of a wide first layer in sample space.

Gradient steps on a first layer W move its pre-activations Z = XWᵀ + b by −lr (XXᵀ + 1) ΣG, where the G are the
gradients at Z. With fewer samples than inputs it is cheaper to keep ΣG (n × outputs) than W (outputs × inputs): W
changes by −lr (ΣG)ᵀ X, formed once at the end.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.engines.feeds import FullFeed, Samples
from coterie.engines.kernels import (
    Plan,
    Stage,
    Trained,
    activate,
    affines,
    backward,
    forward,
    leading,
    loss_gradient,
    side_by_side,
    through_activation,
)


def pays(stage: Stage, samples: int, steps: int) -> bool:
    """Whether sample space takes fewer operations than weights, even when the Gram matrix must be computed."""
    n, inputs, outputs = samples, stage.inputs, stage.outputs
    in_weights = 2 * steps * n * inputs * outputs
    in_samples = n * n * inputs + steps * n * n * outputs + 2 * n * inputs * outputs
    return n < inputs and steps > 1 and in_samples < in_weights


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
    """Updates of everything after the first stage `(b, d − cut)`."""
    losses: Tensor
    """Sums of losses `(b,)`."""


def train_in_sample_space(
    plan: Plan,
    starts: Sequence[Tensor],
    samples: Sequence[Samples],
    grams: Sequence[Tensor],
    lr: float,
    trained: Sequence[Trained],
) -> Course:
    """Full-batch SGD from `starts`, b vectors `(d,)`, without forming the first stage's weights.

    The samples are sorted by falling number of steps, and the first stage is trained.
    """
    first, rest = plan.stages[0], plan.stages[1:]
    feed = FullFeed(samples)
    b, n, _inputs = feed.x.shape
    gram = _padded_grams(grams, n, first.bias is not None)
    z = _first_values(first, starts, feed.x)
    total, room = torch.zeros_like(z), torch.empty_like(z)
    cut = _end_of(first)
    shifted = [
        stage._replace(
            weight=slice(stage.weight.start - cut, stage.weight.stop - cut),
            bias=None if stage.bias is None else slice(stage.bias.start - cut, stage.bias.stop - cut),
        )
        for stage in rest
    ]
    above = torch.stack([start[cut:] for start in starts]) if rest else z.new_zeros(b, 0)
    origin = affines(shifted, above)
    weights = side_by_side(origin)
    losses = z.new_zeros(b)
    for t in range(samples[0].steps):
        active = sum(s.steps > t for s in samples)
        layers = leading(weights, active)
        _x, y, rows = feed.step(t, active)
        now = room[:active]
        if t:
            torch.baddbmm(z[:active], gram[:active], total[:active], alpha=-lr, out=now)
        else:
            now.copy_(z[:active])
        hidden = activate(first.activation, now)
        values = forward(shifted, layers, hidden)
        seen, grad = loss_gradient(plan.loss, values[-1], y, rows)
        losses[:active] += seen
        grad = backward(shifted, layers, values, grad, layers, trained[1:], alpha=-lr, beta=1, to_input=True)
        total[:active] += through_activation(first.activation, grad, hidden)
    for start, end in zip(origin, weights, strict=True):
        torch.sub(end.weight, start.weight, out=start.weight)
        if start.bias is not None and end.bias is not None:
            torch.sub(end.bias, start.bias, out=start.bias)
    return Course(total, feed.x, gram, above, losses)


def write_updates(course: Course, plan: Plan, lr: float, updates: Tensor) -> None:
    """Write every client's update to its row of `updates: (b, d)`."""
    first = plan.stages[0]
    own = affines([first], updates)[0]
    own.weight.baddbmm_(course.total.transpose(1, 2), course.x, alpha=-lr, beta=0)
    if own.bias is not None:
        torch.sum(course.total, 1, out=own.bias).mul_(-lr)
    updates[:, _end_of(first) :] = course.above


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
    result[_end_of(first) :] += weights @ above
    return norms


def _end_of(stage: Stage) -> int:
    """Where the stage's numbers end in the flat vector."""
    end: int = stage.weight.stop if stage.bias is None else max(stage.weight.stop, stage.bias.stop)
    return end


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
