"""Full-batch training of a wide first layer in sample space.

Gradient steps on a first layer W move its pre-activations Z = XWᵀ + b by −lr (XXᵀ + 1) G, where G is the gradient
at Z. With fewer samples than inputs it is cheaper to move Z (n × outputs) than W (outputs × inputs), and W needs
only the sum of the G: W changes by −lr (ΣG)ᵀ X, formed once at the end.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.engines.feeds import FullFeed, Samples
from coterie.engines.kernels import (
    Affine,
    Plan,
    Stage,
    Trained,
    activate,
    affines,
    backward,
    forward,
    loss_gradient,
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


def train_in_sample_space(
    plan: Plan,
    starts: Sequence[Tensor],
    samples: Sequence[Samples],
    grams: Sequence[Tensor],
    lr: float,
    trained: Sequence[Trained],
    updates: Tensor,
) -> Tensor:
    """Write the updates `(b, d)` of full-batch SGD from `starts`, b vectors `(d,)`; give the sums of losses `(b,)`.

    The samples are sorted by falling number of steps, and the first stage is trained.
    """
    first, rest = plan.stages[0], plan.stages[1:]
    feed = FullFeed(samples)
    b, n, _inputs = feed.x.shape
    gram = _padded_grams(grams, n, first.bias is not None)
    z = _first_values(first, starts, feed.x)
    total = torch.zeros_like(z)
    cut = max(first.weight.stop, first.bias.stop if first.bias is not None else 0)
    upper = torch.stack([start[cut:] for start in starts]) if rest else z.new_zeros(b, 0)
    origin = upper.clone()
    shifted = [
        stage._replace(
            weight=slice(stage.weight.start - cut, stage.weight.stop - cut),
            bias=None if stage.bias is None else slice(stage.bias.start - cut, stage.bias.stop - cut),
        )
        for stage in rest
    ]
    losses = z.new_zeros(b)
    layers: list[Affine] = []
    before = -1
    for t in range(samples[0].steps):
        active = sum(s.steps > t for s in samples)
        if active != before:
            layers, before = affines(shifted, upper[:active]), active
        _x, y, rows = feed.step(t, active)
        hidden = activate(first.activation, z[:active].clone())
        values = forward(shifted, layers, hidden)
        seen, grad = loss_gradient(plan.loss, values[-1], y, rows)
        losses[:active] += seen
        grad = backward(shifted, layers, values, grad, layers, trained[1:], alpha=-lr, beta=1, to_input=True)
        grad = through_activation(first.activation, grad, hidden)
        z[:active].baddbmm_(gram[:active], grad, alpha=-lr)
        total[:active] += grad
    own = affines([first], updates)[0]
    own.weight.baddbmm_(total.transpose(1, 2), feed.x, alpha=-lr, beta=0)
    if own.bias is not None:
        torch.sum(total, 1, out=own.bias).mul_(-lr)
    torch.sub(upper, origin, out=updates[:, cut:])
    return losses


def _padded_grams(grams: Sequence[Tensor], n: int, bias: bool) -> Tensor:
    """The matrices XXᵀ (+ 1 for the bias) as one `(b, n, n)`; what is beyond a client's samples never counts."""
    block = grams[0].new_zeros(len(grams), n, n)
    for row, gram in zip(block, grams, strict=True):
        row[: len(gram), : len(gram)] = gram
    return block.add_(1) if bias else block


def _first_values(stage: Stage, starts: Sequence[Tensor], x: Tensor) -> Tensor:
    """The first stage's values before activation `(b, n, outputs)`: one product for each distinct start."""
    z = x.new_empty(*x.shape[:2], stage.outputs)
    by_start: dict[int, list[int]] = {}
    for i, start in enumerate(starts):
        by_start.setdefault(start.data_ptr(), []).append(i)
    for members in by_start.values():
        weight, bias = affines([stage], starts[members[0]])[0]
        z[members] = torch.nn.functional.linear(x[members], weight, bias)
    return z
