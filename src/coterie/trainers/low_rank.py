"""Large linear layers whose SGD steps are kept as a low-rank sum beside the weights and added to them now and then.

A step on a batch of B samples changes the weights `(out, in)` by -lr Gᵀ X, with the inputs X `(B, in)` and the
gradients G `(B, out)` of the outputs. Writing that matrix out costs more time than computing with its factors as long
as there are few of them: x Wᵀ becomes x W₀ᵀ - (x Xᵀ) G, and one product adds many steps to W₀ at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional as F

from coterie.trainers.base import Training
from coterie.trainers.pure_code import hooked
from coterie.trainers.recognition import sequentials

LARGE = 2**19
"""Weights from which a layer's steps are worth keeping apart: fewer stay in the cache when a step rewrites them."""
PRODUCTS = 10
"""Rows of a batch for which multiplying with a number takes as long as fetching it from memory."""
SMALLEST_SCALE = 1e-2
"""Weight decay that shrinks the kept steps below this is written into the weights: dividing by it loses digits."""


def kept_rows(inputs: int, outputs: int, rows: int) -> int:
    """How many rows of factors to keep before they are added to the weights, if every step brings `rows` of them.

    With R kept, a step fetches R (in + out) numbers (half of R on average, forward and backward) and multiplies each
    by every row of the batch; adding them up fetches and writes in · out numbers every R / rows steps. The sum is
    least at the R that is returned.
    """
    return round(math.sqrt(2 * inputs * outputs * rows / ((inputs + outputs) * (1 + rows / PRODUCTS))))


class FactoredLinear(nn.Module):
    """Takes the place of a Linear, with the very parameters of it; outside of `apart` it is just that.

    While it trains, the weights in force are scale · (weight - Gᵀ X), where the kept rows of G have the step size in
    them, and `scale` is what weight decay has left.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.training = linear.training
        self.apart = False
        self.forget()

    def forget(self) -> None:
        """Drop the kept steps and the memory they are in."""
        self.rank, self.scale = 0, 1.0
        self._x, self._g = self.weight.new_empty(0, self.weight.shape[1]), self.weight.new_empty(0, len(self.weight))
        self._fresh: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        """The outputs `(..., out)` for inputs `(..., in)`."""
        if not self.apart:
            return F.linear(x, self.weight, self.bias)
        # Autocast would make a half-precision copy of the weights in every step, which costs what is saved here.
        with torch.autocast(x.device.type, enabled=False):
            rows = x.reshape(-1, x.shape[-1]).to(self.weight.dtype)
            outputs: Tensor = _Product.apply(rows, self.weight, self)  # type: ignore[no-untyped-call]
            if self.bias is not None:
                outputs = outputs + self.bias
            return outputs.view(*x.shape[:-1], -1)

    def outputs(self, x: Tensor) -> Tensor:
        """`(rows, out)` for inputs `(rows, in)` under the weights in force, without the bias."""
        return self._with_factors(x @ self.weight.t(), x, self._x, self._g)

    def input_gradient(self, g: Tensor) -> Tensor:
        """`(rows, in)` for gradients of the outputs `(rows, out)`."""
        return self._with_factors(g @ self.weight, g, self._g, self._x)

    def _with_factors(self, product: Tensor, rows: Tensor, left: Tensor, right: Tensor) -> Tensor:
        if self.rank:
            product.addmm_(rows @ left[: self.rank].t(), right[: self.rank], alpha=-1)
        return product if self.scale == 1 else product.mul_(self.scale)

    def collect(self, x: Tensor, g: Tensor) -> None:
        """Note the factors of a gradient: inputs `(rows, in)` and gradients of the outputs `(rows, out)`."""
        self._fresh.append((x, g))

    def step(self, training: Training) -> None:
        """One step of SGD with the gradient that was noted, which was at the weights in force."""
        fresh, self._fresh = self._fresh, []
        self.scale *= 1 - training.lr * training.weight_decay
        if self.scale < SMALLEST_SCALE:
            self.write()
        for x, g in fresh:
            limit = kept_rows(self.weight.shape[1], len(self.weight), len(x))
            end = self.rank + len(x)
            if end > len(self._x):
                self._grow(max(end, limit + len(x)))
            self._x[self.rank : end] = x
            torch.mul(g, training.lr / self.scale, out=self._g[self.rank : end])
            self.rank = end
            if self.rank >= limit:
                self.write()

    def _grow(self, rows: int) -> None:
        self._x = torch.cat([self._x, self._x.new_empty(rows - len(self._x), self._x.shape[1])])
        self._g = torch.cat([self._g, self._g.new_empty(rows - len(self._g), self._g.shape[1])])

    def write(self) -> None:
        """Put the kept steps into the weights."""
        if self.rank or self.scale != 1:
            with torch.no_grad():
                g, x = self._g[: self.rank], self._x[: self.rank]
                self.weight.addmm_(g.t(), x, beta=self.scale, alpha=-self.scale)
        self.rank, self.scale = 0, 1.0


class _Product(torch.autograd.Function):
    """The product with a layer's weights in force; its gradient is noted in factors, not as a matrix."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, layer: FactoredLinear) -> Tensor:
        # The weight is an argument so that autograd asks for a gradient even if the inputs need none.
        ctx.save_for_backward(x)
        ctx.layer = layer  # type: ignore[attr-defined]
        return layer.outputs(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, g: Tensor) -> tuple[Tensor | None, None, None]:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        layer: FactoredLinear = ctx.layer  # type: ignore[attr-defined]
        layer.collect(x, g)
        needed: tuple[bool, ...] = ctx.needs_input_grad  # type: ignore[attr-defined]
        return layer.input_gradient(g) if needed[0] else None, None, None


def factor_layers(module: nn.Module) -> dict[str, FactoredLinear]:
    """Replace the large linear layers of a module in place; the names of their weights, and what replaced them.

    Only those in nested Sequentials are taken: in a module of the user's own, the weights may be used by other ways
    than calling the layer. For the same reason layers with hooks are left alone, and modules that share weights.
    """
    places = sum(1 for _ in module.named_parameters(remove_duplicate=False))
    found: dict[str, FactoredLinear] = {}
    if places == sum(1 for _ in module.named_parameters()):
        for prefix, parts in sequentials(module):
            for name, part in parts.items():
                if type(part) is nn.Linear and part.weight.numel() >= LARGE and _free(part):
                    parts[name] = found[f"{prefix}{name}.weight"] = FactoredLinear(part)
    return found


def _free(linear: nn.Linear) -> bool:
    return linear.weight.requires_grad and not hooked(linear)


def worth_keeping_apart(layer: FactoredLinear, training: Training, samples: int) -> bool:
    """Whether the layer's steps go faster, and still mean the same, when they are kept as factors.

    It depends on the layer and the training alone, never on where the work is done, so that results repeat.
    """
    rows = samples if training.batch_size is None else min(samples, training.batch_size)
    outputs, inputs = layer.weight.shape
    return training.linear and 0 < rows <= kept_rows(inputs, outputs, rows)


@contextmanager
def apart(layers: Sequence[FactoredLinear]) -> Iterator[None]:
    """Keep the layers' steps apart from their weights inside, and write them into the weights at the end."""
    for layer in layers:
        layer.apart = True
    try:
        yield
        for layer in layers:
            layer.write()
    finally:
        for layer in layers:
            layer.apart = False
            layer.forget()
