"""FLT's one-shot task for a client: encode the inputs and send a few centroids of the codes."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.encoders import Encoder, finetuned
from coterie.encoders.encoder import Kind
from coterie.parameters import Layout
from coterie.randomness import derive
from coterie.tasks.base import Array, ClientContext, Reduction, Reply, ReplyBlock, ReplySchema, Task, tensor_key
from coterie.trainers.base import Trainer
from coterie.trainers.threads import one_thread

RESTARTS = 4
"""Starts of k-means; the best is kept."""


@dataclass(frozen=True)
class Embed(Task):
    """Encode the training inputs (never the labels), cluster the codes, send k centroids (Algorithm 2, lines 2-10).

    The encoder travels as its parts: `encoder` names the kind, `shape`, `code` and `weights` make it. With `epochs` the
    client first fine-tunes it on its own inputs. A client with fewer than k samples sends as many centroids as it has
    samples.
    """

    encoder: Kind
    shape: tuple[int, ...]
    code: int
    weights: Tensor
    k: int
    epochs: int
    seed: int

    @classmethod
    def with_encoder(cls, encoder: Encoder, k: int, epochs: int, seed: int) -> Embed:
        """The task for a given encoder; its decoder is sent only to clients that fine-tune."""
        weights = encoder.weights if epochs else encoder.encoding_weights()
        return cls(encoder.kind, encoder.shape, encoder.code, weights, k, epochs, seed)

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"centroids": Array((self.k, self.code), at_most=True)})

    def batch_key(self) -> Hashable:
        return Embed, self.encoder, self.shape, self.code, tensor_key(self.weights), self.k, self.epochs

    def perform(
        self,
        tasks: Sequence[Embed],
        contexts: Sequence[ClientContext],
        trainer: Trainer,
        reduce: Reduction | None = None,
    ) -> ReplyBlock:
        with one_thread():
            return super().perform(tasks, contexts, trainer, reduce)

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        x = context.client.train.x
        encoder = Encoder.with_weights(self.encoder, self.shape, self.code, self.weights)
        encoder = finetuned(encoder, x, self.epochs, derive(self.seed, "finetune"))
        centroids = k_means(encoder.encode(x), self.k, derive(self.seed, "k-means"))
        return Reply(context.client.id, len(x), values={"centroids": torch.from_numpy(centroids)})


def k_means(codes: Tensor, k: int, seed: int) -> npt.NDArray[np.float32]:
    """Centroids `(min(k, n), e)` of codes `(n, e)`, in lexical order so that their numbering tells nothing."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    rows = codes.to(torch.float32).numpy()
    model = KMeans(min(k, len(rows)), n_init=RESTARTS, random_state=seed % 2**32)
    with warnings.catch_warnings():
        # Fewer different samples than centroids: some centroids coincide, which harms no distance.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = model.fit(rows).cluster_centers_.astype(np.float32)
    return np.asarray(found[np.lexsort(found.T[::-1])])


def centroid_table(replies: Sequence[Reply], k: int, code: int) -> npt.NDArray[np.float32]:
    """The clients' centroids `(clients, k, code)`; a client that sent fewer than k fills up with nan."""
    table = np.full((len(replies), k, code), np.nan, dtype=np.float32)
    for row, reply in zip(table, replies, strict=True):
        found = reply.values["centroids"]
        row[: len(found)] = found.numpy()
    return table
