"""FLT's one-shot task for a client: encode the inputs and send a few centroids of the codes."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.encoders import Encoder, finetuned
from coterie.encoders.encoder import Kind
from coterie.errors import ConfigError
from coterie.parameters import Layout
from coterie.randomness import derive, numpy_generator
from coterie.tasks.base import Array, ClientContext, Reply, ReplySchema, Task, tensor_key
from coterie.tasks.words import nearest
from coterie.trainers.base import Trainer
from coterie.trainers.threads import one_thread

LEAST = 5
"""Samples behind a centroid, at the least."""
RESTARTS = 4
"""Starts of k-means; the best is kept."""
LARGEST = 1e17
"""The largest number of a code: squared distances between larger ones are not finite in float32, and have no place."""


@dataclass(frozen=True)
class Embed(Task):
    """Encode the training inputs (never the labels), cluster the codes, send k centroids (Algorithm 2, lines 2-10).

    The encoder travels as its parts: `encoder` names the kind, `shape`, `code` and `weights` make it. With `epochs` the
    client first fine-tunes it on its own inputs. A centroid is the mean of at least `least` samples, because that of
    one is a sample's own code, and with a decoder the sample itself; so a small client sends fewer, and one with fewer
    samples than `least` refuses. With `words (K, e)` each centroid goes as the nearest of them. `noise` is Gaussian, in
    standard deviations of the codes around their centroids.
    """

    encoder: Kind
    shape: tuple[int, ...]
    code: int
    weights: Tensor
    k: int
    epochs: int
    seed: int
    least: int = LEAST
    words: Tensor | None = None
    noise: float = 0.0

    @classmethod
    def with_encoder(
        cls,
        encoder: Encoder,
        k: int,
        epochs: int,
        seed: int,
        least: int = LEAST,
        words: Tensor | None = None,
        noise: float = 0.0,
    ) -> Embed:
        """The task for a given encoder; its decoder is sent only to clients that fine-tune."""
        weights = encoder.weights if epochs else encoder.encoding_weights()
        return cls(encoder.kind, encoder.shape, encoder.code, weights, k, epochs, seed, least, words, noise)

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"centroids": Array((self.k, self.code), -LARGEST, LARGEST, at_most=True)})

    def batch_key(self) -> Hashable:
        words = None if self.words is None else tensor_key(self.words)
        encoder = self.encoder, self.shape, self.code, tensor_key(self.weights)
        return Embed, encoder, self.k, self.epochs, self.least, words, self.noise

    def answers(self, tasks: Sequence[Self], contexts: Sequence[ClientContext], trainer: Trainer) -> list[Reply]:
        with one_thread():
            return super().answers(tasks, contexts, trainer)

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        if trainer.masked:
            raise ConfigError("the centroids of this client's data would go out in clear: privacy does not cover them")
        x = context.client.train.x
        if len(x) < self.least:
            raise ConfigError(f"{len(x)} samples are too few for a centroid of at least {self.least}")
        encoder = Encoder.with_weights(self.encoder, self.shape, self.code, self.weights)
        encoder = finetuned(encoder, x, self.epochs, derive(self.seed, "finetune"))
        codes = encoder.encode(x)
        if bool((codes.abs() <= LARGEST).all()):
            centroids = k_means(codes, self.k, derive(self.seed, "k-means"), self.least)
            if self.noise:
                centroids = _noisy(centroids, codes.numpy(), self.noise, derive(self.seed, "noise"))
            if self.words is not None:
                centroids = self.words.numpy()[np.sort(nearest(centroids, self.words.numpy()))]
        else:
            centroids = np.full((1, self.code), np.nan, dtype=np.float32)  # which the engine reports as a fault
        return Reply(context.client.id, len(x), values={"centroids": torch.from_numpy(centroids)})


def k_means(codes: Tensor, k: int, seed: int, least: int = 1) -> npt.NDArray[np.float32]:
    """At most k centroids `(≤ k, e)` of codes `(n, e)`, each the mean of at least `least` of them (or of all).

    They are in lexical order, so that their numbering says nothing.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    rows = codes.to(torch.float32).numpy()
    model = KMeans(max(1, min(k, len(rows) // least)), n_init=RESTARTS, random_state=seed % 2**32)
    with warnings.catch_warnings():
        # Fewer different samples than centroids: some centroids coincide, which harms no distance.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = model.fit(rows).cluster_centers_.astype(np.float32)
    labels = np.asarray(model.labels_)
    if least > 1 and np.bincount(labels, minlength=len(found)).min() < least:
        found = _merged(rows, labels, least)
    return np.asarray(found[np.lexsort(found.T[::-1])])


def _merged(rows: npt.NDArray[np.float32], labels: npt.NDArray[np.int_], least: int) -> npt.NDArray[np.float32]:
    """The clusters' means, after those of fewer than `least` rows went, smallest first, to the nearest other one."""
    members = [rows[labels == label] for label in np.unique(labels)]
    while len(members) > 1 and min(map(len, members)) < least:
        small = members.pop(int(np.argmin([len(own) for own in members])))
        apart = [float(np.linalg.norm(own.mean(axis=0) - small.mean(axis=0))) for own in members]
        nearest = int(np.argmin(apart))
        members[nearest] = np.concatenate([members[nearest], small])
    return np.stack([own.mean(axis=0, dtype=np.float64) for own in members]).astype(np.float32)


def _noisy(
    centroids: npt.NDArray[np.float32], codes: npt.NDArray[np.float32], noise: float, seed: int
) -> npt.NDArray[np.float32]:
    """The centroids `(k, e)` with noise, in standard deviations of a coordinate of the codes around their centroids.

    In lexical order again, as `k_means` gives them.
    """
    spread = float(np.sqrt(np.mean((codes - centroids[nearest(codes, centroids)]) ** 2, dtype=np.float64)))
    generator = numpy_generator(seed, "centroids")
    found = (centroids + noise * spread * generator.standard_normal(centroids.shape)).astype(np.float32)
    return np.asarray(found[np.lexsort(found.T[::-1])])


def centroid_table(replies: Sequence[Reply], k: int, code: int) -> npt.NDArray[np.float32]:
    """The clients' centroids `(clients, k, code)`; a client that sent fewer than k fills up with nan."""
    table = np.full((len(replies), k, code), np.nan, dtype=np.float32)
    for row, reply in zip(table, replies, strict=True):
        found = reply.values["centroids"]
        row[: len(found)] = found.numpy()
    return table
