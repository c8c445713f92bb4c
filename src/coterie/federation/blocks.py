"""Samples that belong together, such as those of a recording, a day or a patient, are held out together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import DataError


def block_numbers(client_id: str, names: Any, n: int) -> Tensor:
    """The block of each of a client's n samples as a number (n,), by the blocks' names."""
    values = names.numpy() if isinstance(names, Tensor) else np.asarray(names)
    if values.shape != (n,):
        raise DataError(
            f"client {client_id!r}: blocks of shape {values.shape} for {n} samples: give each sample its block"
        )
    return torch.from_numpy(np.unique(values, return_inverse=True)[1].astype(np.int64))


def draw_blocks(block: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Which of the samples with these blocks (n,) are held out: bool (n,), whole blocks, about `count` samples.

    Blocks are gone through in a random order, and one is taken if that brings the number closer to `count`. At least
    one is taken, the smallest, and one is left; of a single block nothing is held out.
    """
    _, number, sizes = block.unique(return_inverse=True, return_counts=True)
    order = torch.randperm(len(sizes), generator=generator).tolist()
    taken: list[int] = []
    held = 0
    for place in order[: len(sizes) - 1]:
        size = int(sizes[place])
        if abs(held + size - count) < abs(held - count):
            taken.append(place)
            held += size
    if not taken and len(sizes) > 1:
        taken = [int(sizes.argmin())]
    return torch.isin(number, torch.tensor(taken, dtype=torch.int64))


def split_blocks(block: Tensor, wanted: Mapping[str, int], generator: torch.Generator) -> dict[str, Tensor]:
    """The places of the samples of each part, in order: whole blocks to test and validation, about as many as wanted.

    The test part is drawn first. What is left is for training, at least one block.
    """
    left = torch.arange(len(block))
    rows: dict[str, Tensor] = {}
    for part in ("test", "validation"):
        held = (
            draw_blocks(block[left], wanted[part], generator)
            if wanted[part]
            else torch.zeros(len(left), dtype=torch.bool)
        )
        rows[part], left = left[held], left[~held]
    return {"train": left, **rows}
