"""A data set in memory, before it is dealt to clients: images with labels, or text as token sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]
Part = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class Pool:
    """Labelled images, kept compactly: uint8, or float32 already in [0, 1]."""

    name: str
    x: npt.NDArray[Any]
    """Training images: (n, channels, height, width)."""
    y: IntArray
    """Training labels: (n,), in 0..classes-1."""
    x_test: npt.NDArray[Any]
    y_test: IntArray
    classes: int
    writer: IntArray | None = None
    """Who wrote each training image, or which site it is of: (n,), where the set says so."""
    writer_test: IntArray | None = None
    mean: tuple[float, ...] | None = None
    """Per-channel mean and standard deviation that `images` normalises by; None leaves images in [0, 1]."""
    std: tuple[float, ...] | None = None

    def images(self, index: npt.ArrayLike | slice = slice(None), part: Part = "train") -> torch.Tensor:
        """The images at `index` as a new float32 tensor (n, channels, height, width), ready for a model."""
        source = self.x if part == "train" else self.x_test
        chosen = source[index if isinstance(index, slice) else np.asarray(index, dtype=np.int64)]
        scaled = torch.from_numpy(chosen.astype(np.float32))
        if source.dtype == np.uint8:
            scaled /= 255
        if self.mean is not None and self.std is not None:
            scaled -= torch.tensor(self.mean).view(-1, 1, 1)
            scaled /= torch.tensor(self.std).view(-1, 1, 1)
        return scaled

    def labels(self, index: npt.ArrayLike | slice = slice(None), part: Part = "train") -> torch.Tensor:
        """The labels at `index` as a new int64 tensor (n,)."""
        source = self.y if part == "train" else self.y_test
        return torch.from_numpy(source[index if isinstance(index, slice) else np.asarray(index, dtype=np.int64)].copy())


@dataclass(frozen=True, eq=False)
class TextPool:
    """Token sequences with a key each: the topic of a news item, or the speaker of the lines."""

    name: str
    tokens: tuple[IntArray, ...]
    """Training sequences, of any length, each (length,), with values in 0..len(vocabulary)-1."""
    key: IntArray
    """The key of each training sequence: (n,), an index into `keys`."""
    tokens_test: tuple[IntArray, ...]
    key_test: IntArray
    keys: tuple[str, ...]
    vocabulary: tuple[str, ...]
    """Token texts by id; built from the training part only. Id 0 stands for everything unknown."""


def windows(tokens: Sequence[IntArray], length: int) -> tuple[IntArray, IntArray]:
    """Next-token pairs x, y, both (n, length): y[i, t] is the token that follows x[i, t].

    Consecutive windows share no target; sequences are read as one, end to end; a rest shorter than a window
    is left out.
    """
    line = np.concatenate([np.empty(0, dtype=np.int64), *tokens])
    count = max(len(line) - 1, 0) // length
    used = count * length
    return line[:used].reshape(count, length).copy(), line[1 : used + 1].reshape(count, length).copy()
