"""Mini-batch steps on a wide first layer, several at a time.

A step on a batch moves the first layer's weights W by −lr GᵀX, where X are the batch's inputs and G the gradients at
its values Z = XWᵀ + b. For a later batch with inputs X' this moves Z' by −lr (X'Xᵀ + 1) G. So a block of steps needs
the values of all its samples under the weights before the block, and the Gram matrix of those samples; the weights
change once at the end of the block, by one product. Small batches become large ones, and the weights, too large for
the cache, are read once per block and not once per step.

Between blocks the first layer is kept as weights (`FirstWeights`) or, when all of training has few samples, as sums of
gradients per sample (`sample_space.FirstSums`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from coterie.trainers.batching import BatchOrder
from coterie.trainers.kernels import (
    Affine,
    Plan,
    Stage,
    TrainedParts,
    activate,
    backward,
    forward,
    leading,
    linear,
    side_by_side,
    through_activation,
)
from coterie.trainers.step_losses import Targets, loss_gradient

BLOCK_ROWS = 128
"""The most samples of each client in a block."""
HALF_SPEED = 10
"""Rows of a batched product at which it reaches half of the speed of a large one."""


def rows_in_block(stage: Stage, batch: int) -> int:
    """Samples of each client in a block: whole batches, few enough for a Gram matrix that is cheap beside the layer."""
    return max(1, min(BLOCK_ROWS, stage.outputs // 2) // batch) * batch


def cost_of_steps(stage: Stage, batch: int) -> float:
    """What a sample costs in the first layer when every batch is a product: multiplications at full speed."""
    return 2 * stage.inputs * stage.outputs / _speed(batch)


def cost_in_blocks(stage: Stage, batch: int) -> float:
    """What a sample costs in the first layer when steps are taken in blocks."""
    rows = rows_in_block(stage, batch)
    products = 2 * stage.inputs * stage.outputs + rows * stage.inputs
    return products / _speed(rows) + cost_within(stage, rows, batch)


def cost_within(stage: Stage, rows: int, batch: int) -> float:
    """What a sample costs within a block: the earlier batches' effect on it."""
    return rows / 2 * stage.outputs / _speed(batch)


def _speed(rows: int) -> float:
    return rows / (rows + HALF_SPEED)


class FirstLayer(Protocol):
    """The first layer between blocks, for several clients."""

    def open(self, places: slice, active: int) -> tuple[Tensor, Tensor]:
        """Values before activation `(active, rows, outputs)` of a block's samples, and their Gram matrices."""
        ...

    def close(self, sums: Tensor) -> None:
        """Take in the block's gradients `(active, rows, outputs)`."""
        ...


class FirstWeights:
    """The first layer of each client as weights `(b, outputs, inputs)` and bias `(b, outputs)`."""

    def __init__(self, start: Affine, trained: TrainedParts, order: BatchOrder, rows: int, lr: float) -> None:
        self.layer = side_by_side([start])[0]
        self.trained = trained
        self.order = order
        self.lr = lr
        first = order.samples[0].x
        self.x = first.new_empty(len(order.samples), rows, first.shape[1])
        self.now = self.x

    def open(self, places: slice, active: int) -> tuple[Tensor, Tensor]:
        """Gather the block's inputs, and compute their values and Gram matrices."""
        index = self.order.index[:active, places]
        for i, s in enumerate(self.order.samples[:active]):
            torch.index_select(s.x, 0, index[i], out=self.x[i, : index.shape[1]])
        self.now = x = self.x[:active, : index.shape[1]]
        gram = torch.bmm(x, x.transpose(1, 2))
        values = linear(x, leading([self.layer], active)[0])
        return values, gram.add_(1) if self.trained.bias else gram

    def close(self, sums: Tensor) -> None:
        """Move the weights."""
        weight, bias = leading([self.layer], len(sums))[0]
        weight.baddbmm_(sums.transpose(1, 2), self.now, alpha=-self.lr)
        if bias is not None and self.trained.bias:
            bias.add_(sums.sum(1), alpha=-self.lr)


def train_in_blocks(
    plan: Plan,
    first: FirstLayer,
    above: Sequence[Affine],
    order: BatchOrder,
    rows: int,
    lr: float,
    trained: Sequence[TrainedParts],
) -> Tensor:
    """Take all steps, `rows` samples of each client per block; the sums of losses `(b,)`.

    `above` are the weights of the stages after the first, which are changed in place.
    """
    stage, rest = plan.stages[0], plan.stages[1:]
    everything = slice(0, order.steps * order.size)
    targets = Targets.of(plan.loss, plan.stages[-1].outputs, order.targets(everything), order.rows).steps(order.size)
    size, places = order.size, order.steps * order.size
    losses = order.rows.new_zeros(len(order.samples))
    room = order.rows.new_empty(len(order.samples), rows, stage.outputs)
    for begin in range(0, places, rows):
        block = slice(begin, min(begin + rows, places))
        active = order.active(begin // size)
        values, gram = first.open(block, active)
        layers = leading(above, active)
        sums = room[:active, : block.stop - block.start]
        for t, (z, near, grad_at) in enumerate(
            zip(values.split(size, 1), gram.split(size, 1), sums.split(size, 1), strict=True)
        ):
            if t:
                z = torch.baddbmm(z, near[:, :, : t * size], sums[:, : t * size], alpha=-lr)
            hidden = activate(stage.activation, z)
            inner = forward(rest, layers, hidden)
            seen, grad = loss_gradient(plan.loss, inner[-1], targets[begin // size + t].leading(active))
            losses[:active].add_(seen)
            grad = backward(rest, layers, inner, grad, layers, trained[1:], alpha=-lr, beta=1, to_input=True)
            grad_at.copy_(through_activation(stage.activation, grad, hidden))
        first.close(sums)
    return losses


def above_first(plan: Plan) -> tuple[list[slice], list[Stage]]:
    """The places of all but the first stage in the flat vector, and the other stages in these places joined."""
    first, *rest = plan.stages
    own = sorted([first.weight] if first.bias is None else [first.weight, first.bias], key=lambda place: place.start)
    ends = [0, *(end for place in own for end in (place.start, place.stop)), plan.size]
    spans = [slice(start, stop) for start, stop in zip(ends[::2], ends[1::2], strict=True) if start < stop]

    def joined(place: slice) -> slice:
        before = sum(taken.stop - taken.start for taken in own if taken.start < place.start)
        return slice(place.start - before, place.stop - before)

    return spans, [
        stage._replace(weight=joined(stage.weight), bias=None if stage.bias is None else joined(stage.bias))
        for stage in rest
    ]
