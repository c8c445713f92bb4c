"""Which samples make up each step of a client's training: the same for every engine and kernel."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from coterie.workbench import Training


def epoch_orders(samples: int, training: Training, seed: int) -> Iterator[Tensor | None]:
    """The order of the samples in each pass over the data, endlessly; None is their own order (full batch)."""
    if training.batch_size is None or training.batch_size >= samples:
        while True:
            yield None
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randperm(samples, generator=generator)


def batches(samples: int, training: Training, seed: int) -> Iterator[Tensor | slice]:
    """The samples of each SGD step, in turn: shuffled passes, cut into batches, the last one of a pass smaller."""
    size = samples if training.batch_size is None else min(training.batch_size, samples)
    left = training.batches(samples)
    for order in epoch_orders(samples, training, seed):
        for start in range(0, samples, size):
            if left == 0:
                return
            left -= 1
            yield slice(None) if order is None else order[start : start + size]
        if left == 0:
            return
