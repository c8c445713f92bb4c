"""An encoder as a message: what kind it is, the shape of image it takes, and its numbers as one flat vector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from coterie.errors import ConfigError
from coterie.models.autoencoder import ConvAutoencoder
from coterie.parameters import Layout, gather, scatter

Kind = Literal["conv", "pca", "own-pca"]
AT_ONCE = 512
"""Images encoded in one go; it bounds memory."""


@dataclass(frozen=True)
class Encoder:
    """Turns inputs into codes `(n, code)`.

    `conv` is the convolutional autoencoder (its numbers as `Layout.of` orders them), `pca` a mean and principal axes,
    `own-pca` an agreement that every client takes the principal axes of its own data (nothing is sent).
    """

    kind: Kind
    shape: tuple[int, ...]
    """Shape of one input; images of another size are resized to it. Empty for `own-pca`, which takes any."""
    code: int
    weights: Tensor

    @classmethod
    def with_weights(cls, kind: Kind, shape: tuple[int, ...], code: int, weights: Tensor) -> Encoder:
        """The encoder with these numbers; a decoder that is not among them is zero, for it is not used."""
        if kind == "conv" and len(weights) < conv_layout(shape, code).size:
            whole = torch.zeros(conv_layout(shape, code).size)
            scatter(whole, conv_layout(shape, code).select("encoder"), weights)
            weights = whole
        return cls(kind, shape, code, weights)

    def encoding_weights(self) -> Tensor:
        """The numbers that encoding takes: those of the encoder without the decoder."""
        if self.kind == "conv":
            return gather(self.weights, conv_layout(self.shape, self.code).select("encoder"))
        return self.weights

    def encode(self, x: Tensor) -> Tensor:
        """The codes `(n, code)` of inputs `(n, ...)`, float32."""
        if self.kind == "own-pca":
            mean, axes = principal_axes(numeric(x).flatten(1), self.code)
            return (numeric(x).flatten(1) - mean) @ axes.T
        inputs = fitted(x, self.shape)
        if self.kind == "pca":
            size = math.prod(self.shape)
            mean, axes = self.weights[:size], self.weights[size:].view(self.code, size)
            return (inputs.flatten(1) - mean) @ axes.T
        network = conv_network(self)
        with torch.no_grad():
            return torch.cat([network.encode(part) for part in inputs.split(AT_ONCE)])


def numeric(x: Tensor) -> Tensor:
    """The inputs as float32; tokens have no distances and are refused."""
    if not x.is_floating_point():
        raise ConfigError("an encoder takes images or vectors of real numbers, but the inputs are tokens (integers)")
    return x.to(torch.float32)


def fitted(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Inputs `(n, ...)` brought to the shape that an encoder takes.

    Images change size by interpolation that averages when it shrinks, colours become grey by their mean, and grey is
    repeated for an encoder of colours.
    """
    x = numeric(x)
    given = tuple(x.shape[1:])
    if given == shape:
        return x
    if len(given) != 3 or len(shape) != 3 or (given[0] != shape[0] and 1 not in (given[0], shape[0])):
        raise ConfigError(
            f"the encoder takes inputs of shape {shape}, the data has {given}: train one on a source of that shape "
            "with 'coterie encoder train'"
        )
    if given[0] != shape[0]:
        x = x.mean(1, keepdim=True) if shape[0] == 1 else x.expand(-1, shape[0], -1, -1)
    return functional.interpolate(x, size=shape[1:], mode="bilinear", antialias=True)


def principal_axes(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean `(d,)` and the first `count` principal axes `(count, d)` of rows `(n, d)`.

    Each axis points so that its largest entry is positive; axes beyond the rank of the data are zero.
    """
    mean = rows.mean(0)
    _, scales, axes = torch.linalg.svd((rows - mean).double(), full_matrices=False)
    axes = axes[: int((scales > 1e-7 * scales.max().clamp_min(1e-30)).sum())][:count]
    if len(axes):
        top = axes.gather(1, axes.abs().argmax(1, keepdim=True))
        axes = axes * top.sign()
    padded = torch.zeros(count, rows.shape[1])
    padded[: len(axes)] = axes.to(torch.float32)
    return mean, padded


@lru_cache(maxsize=16)
def conv_layout(shape: tuple[int, ...], code: int) -> Layout:
    """The layout of the autoencoder's numbers."""
    return Layout.of(_blank_network(shape, code))


def _blank_network(shape: tuple[int, ...], code: int) -> ConvAutoencoder:
    with torch.random.fork_rng(devices=[]):  # building draws an initialisation, which is not used
        return ConvAutoencoder(shape, code)


def conv_network(encoder: Encoder) -> ConvAutoencoder:
    """The autoencoder with the encoder's numbers."""
    network = _blank_network(encoder.shape, encoder.code)
    conv_layout(encoder.shape, encoder.code).write(encoder.weights, network)
    return network
