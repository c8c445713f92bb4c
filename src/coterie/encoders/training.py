"""Make an encoder of inputs alone: train or fine-tune the autoencoder, or take principal axes. No labels anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from coterie import models
from coterie.encoders.encoder import Encoder, conv_layout, conv_network, fitted, numeric, principal_axes
from coterie.randomness import derive, torch_generator

LEARNING_RATE = 1e-3
BATCH = 64
FINETUNE_BATCH = 32
"""Clients hold few samples: smaller batches give their few epochs enough steps."""


def train_encoder(
    x: Tensor,
    *,
    code: int = 128,
    epochs: int = 10,
    seed: int = 0,
    say: Callable[[int, float], None] = lambda epoch, loss: None,
) -> Encoder:
    """A convolutional encoder trained to rebuild images x `(n, channels, height, width)`.

    `say(epoch, loss)` hears of every epoch, counted from 1, with its mean squared error.
    """
    shape = tuple(x.shape[1:])
    network = models.build(f"autoencoder:code={code}", shape, 0, derive(seed, "encoder"))
    fresh = Encoder("conv", shape, code, conv_layout(shape, code).read(network))
    return _trained(fresh, numeric(x), epochs, BATCH, seed, say)


def finetuned(encoder: Encoder, x: Tensor, epochs: int, seed: int) -> Encoder:
    """The encoder after `epochs` passes over a client's own inputs; encoders without a decoder stay as they are."""
    if encoder.kind != "conv" or epochs == 0:
        return encoder
    return _trained(encoder, fitted(x, encoder.shape), epochs, FINETUNE_BATCH, seed)


def pca_encoder(x: Tensor, *, code: int = 128) -> Encoder:
    """The principal axes of inputs x `(n, ...)` as an encoder; axes beyond the rank of the data are zero."""
    mean, axes = principal_axes(numeric(x).flatten(1), code)
    return Encoder("pca", tuple(x.shape[1:]), code, torch.cat([mean, axes.flatten()]))


def _trained(
    encoder: Encoder,
    x: Tensor,
    epochs: int,
    batch: int,
    seed: int,
    say: Callable[[int, float], None] = lambda epoch, loss: None,
) -> Encoder:
    """Adam on the mean squared error of the reconstruction, in an order that is a function of the seed alone."""
    network = conv_network(encoder)
    optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=True)
    for epoch in range(epochs):
        total = 0.0
        for index in torch.randperm(len(x), generator=torch_generator(seed, "encoder", epoch)).split(batch):
            inputs = x[index]
            loss = functional.mse_loss(network(inputs), inputs)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(index)
        say(epoch + 1, total / len(x))
    return replace(encoder, weights=conv_layout(encoder.shape, encoder.code).read(network))
