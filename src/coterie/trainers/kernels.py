"""Forward and backward passes of feed-forward networks for several clients at once, written out by hand.

Weights come as views of one flat block: `(b, outputs, inputs)` for clients with weights of their own, or
`(outputs, inputs)` for clients that share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.trainers.losses import Loss

# Looked up once: to find the right one of an operation's signatures takes longer than a small operation.
_relu_backward = torch.ops.aten.threshold_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class Stage(NamedTuple):
    """A linear layer, its place in the flat vector, and the activation after it ("", "relu" or "tanh")."""

    inputs: int
    outputs: int
    weight: slice
    bias: slice | None
    activation: str


@dataclass(frozen=True)
class Plan:
    """A feed-forward network as stages in order, with its loss (one for which `step_losses` has the gradient)."""

    stages: tuple[Stage, ...]
    loss: Loss
    flattens: bool
    """Whether samples of any shape are flattened first."""
    size: int
    """Length d of the flat vector."""
    normalises: bool = False
    """Whether the outputs are the logarithms of probabilities, and not any logits."""

    @property
    def width(self) -> int:
        """The largest number of values a sample takes in any layer."""
        return max(max(stage.inputs, stage.outputs) for stage in self.stages)


class Affine(NamedTuple):
    """Views of one stage's weight `(..., outputs, inputs)` and bias `(..., outputs)`."""

    weight: Tensor
    bias: Tensor | None


class TrainedParts(NamedTuple):
    """Whether a stage's weight and its bias are trained."""

    weight: bool
    bias: bool


def affines(stages: Sequence[Stage], flat: Tensor) -> list[Affine]:
    """Views of the stages' weights and biases in `flat: (..., d)`."""
    lead = flat.shape[:-1]
    return [
        Affine(
            flat[..., stage.weight].view(*lead, stage.outputs, stage.inputs),
            None if stage.bias is None else flat[..., stage.bias],
        )
        for stage in stages
    ]


def side_by_side(layers: Sequence[Affine]) -> list[Affine]:
    """Copies with each layer's weights side by side: batched products into rows of `(b, d)` would go one by one."""

    def copy(tensor: Tensor) -> Tensor:
        return tensor.clone(memory_format=torch.contiguous_format)

    return [Affine(copy(weight), None if bias is None else copy(bias)) for weight, bias in layers]


def subtract(end: Sequence[Affine], start: Sequence[Affine], into: Sequence[Affine]) -> None:
    """Write how far the weights moved from `start` to `end` to `into`, which may be `start` itself."""
    for after, before, moved in zip(end, start, into, strict=True):
        torch.sub(after.weight, before.weight, out=moved.weight)
        if after.bias is not None and before.bias is not None and moved.bias is not None:
            torch.sub(after.bias, before.bias, out=moved.bias)


def leading(layers: Sequence[Affine], count: int) -> list[Affine]:
    """Views of the first `count` clients' weights."""
    return [Affine(weight[:count], None if bias is None else bias[:count]) for weight, bias in layers]


def linear(a: Tensor, layer: Affine) -> Tensor:
    """`a Wᵀ + bias` for inputs `(b, n, inputs)` and own or shared weights."""
    weight, bias = layer
    if weight.ndim == 2:
        return F.linear(a, weight, bias)
    if bias is None:
        return torch.bmm(a, weight.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), a, weight.transpose(1, 2))


def activate(activation: str, z: Tensor) -> Tensor:
    """The activation of `z`, in place."""
    if activation == "relu":
        return z.relu_()
    return z.tanh_() if activation == "tanh" else z


def through_activation(activation: str, grad: Tensor, output: Tensor) -> Tensor:
    """The gradient before an activation, from the one after it and the activation's output; in the place of `grad`."""
    if activation == "relu":
        _relu_backward(grad, output, 0, grad_input=grad)
    elif activation == "tanh":
        _tanh_backward(grad, output, grad_input=grad)
    return grad


def forward(stages: Sequence[Stage], layers: Sequence[Affine], x: Tensor) -> list[Tensor]:
    """The input of every stage and, last, the output: tensors `(b, n, width)`."""
    values = [x]
    for stage, layer in zip(stages, layers, strict=True):
        values.append(activate(stage.activation, linear(values[-1], layer)))
    return values


def backward(
    stages: Sequence[Stage],
    layers: Sequence[Affine],
    values: Sequence[Tensor],
    grad: Tensor,
    into: Sequence[Affine],
    trained: Sequence[TrainedParts],
    *,
    alpha: float,
    beta: float,
    to_input: bool = False,
) -> Tensor:
    """Set each trained tensor of `into` to `beta` times itself plus `alpha` times its gradient.

    `values` are those of `forward` and `grad: (b, n, c)` the gradient at the outputs, which is written over. `into`
    may be `layers` itself: a layer is read before it is written. With `to_input` the gradient at the first stage's
    input is returned.
    """
    lowest = 0 if to_input else min((i for i, t in enumerate(trained) if any(t)), default=len(stages))
    for i in range(len(stages) - 1, lowest - 1, -1):
        grad = through_activation(stages[i].activation, grad, values[i + 1])
        below = _times(grad, layers[i].weight) if i > lowest or to_input else grad
        weight, bias = into[i]
        if trained[i].weight:
            weight.baddbmm_(grad.transpose(1, 2), values[i], alpha=alpha, beta=beta)
        if bias is not None and trained[i].bias:
            (bias if beta == 1 else bias.mul_(beta)).add_(grad.sum(1), alpha=alpha)
        grad = below
    return grad


def _times(grad: Tensor, weight: Tensor) -> Tensor:
    """`grad W` for gradients `(b, n, outputs)` and own or shared weights."""
    return torch.bmm(grad, weight) if weight.ndim == 3 else torch.matmul(grad, weight)
