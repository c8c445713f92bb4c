"""Sums of a client's codes around words that all share: what a codebook is learned from without showing a sample."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.encoders import Encoder
from coterie.encoders.encoder import Kind
from coterie.errors import ConfigError
from coterie.parameters import Layout
from coterie.tasks.base import ClientContext, Reply, ReplySchema, Task, tensor_key
from coterie.trainers.base import Trainer
from coterie.trainers.threads import one_thread


@dataclass(frozen=True)
class WordSums(Task):
    """Encode the training inputs, and add the codes up by the nearest of `words (K, e)`.

    The vector holds for each word the sum of its codes, that of their squares, and their number, `(K, 2·e + 1)`. It is
    meant to be added up over all clients.
    """

    encoder: Kind
    shape: tuple[int, ...]
    code: int
    weights: Tensor
    words: Tensor

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(len(self.words) * (2 * self.code + 1), wide=True)

    def batch_key(self) -> Hashable:
        return WordSums, tensor_key(self.weights), tensor_key(self.words)

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        if trainer.masked:
            raise ConfigError("sums of this client's codes would go out in clear: privacy does not cover them")
        x = context.client.train.x
        with one_thread():
            codes = Encoder.with_weights(self.encoder, self.shape, self.code, self.weights).encode(x)
            row = torch.cat([codes, codes**2, codes.new_ones(len(codes), 1)], 1)
            sums = row.new_zeros(len(self.words), row.shape[1])
            sums.index_add_(0, torch.from_numpy(nearest(codes.numpy(), self.words.numpy())), row)
        return Reply(context.client.id, len(x), sums.reshape(-1))


def nearest(codes: npt.NDArray[np.float32], words: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """For each of the codes `(n, e)` the number of the nearest of the words `(K, e)`."""
    squares = (words.astype(np.float64) ** 2).sum(1)
    return np.asarray((squares - 2 * codes.astype(np.float64) @ words.T.astype(np.float64)).argmin(1))
