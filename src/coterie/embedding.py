"""FLT's one-off question to a client: what do your inputs look like? Answered by a few centroids of their codes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from coterie.encoders import Encoder, finetuned
from coterie.encoders.encoder import Kind
from coterie.messages import NUMBER, Reply, Worksite
from coterie.parameters import Layout
from coterie.randomness import derive
from coterie.workbench import Workbench

RESTARTS = 4
"""Starts of k-means; the best is kept."""


@dataclass(frozen=True)
class Embed:
    """Encode the training inputs (never the labels), cluster the codes, send k centroids (Algorithm 2, lines 2-10).

    The encoder travels as its parts: `encoder` names the kind, `shape`, `code` and `weights` make it. With `epochs` the
    client first fine-tunes it on its own inputs. A client with fewer than k samples sends as many centroids as it has
    samples, and their number.
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
        """The task for a given encoder."""
        return cls(encoder.kind, encoder.shape, encoder.code, encoder.weights, k, epochs, seed)

    def kind(self) -> tuple[Any, ...]:
        return (Embed, self.encoder, self.shape, self.code, id(self.weights), self.k, self.epochs)

    def down(self, layout: Layout) -> int:
        return NUMBER * self._encoder().sent(finetune=self.epochs > 0)

    def perform(self, tasks: Sequence[Embed], sites: Sequence[Worksite], bench: Workbench) -> list[Reply]:
        with one_thread():
            return [task._reply(site) for task, site in zip(tasks, sites, strict=True)]

    def _reply(self, site: Worksite) -> Reply:
        x = site.client.train.x
        encoder = finetuned(self._encoder(), x, self.epochs, derive(self.seed, "finetune"))
        centroids = k_means(encoder.encode(x), self.k, derive(self.seed, "k-means"))
        count = len(centroids)
        return Reply(
            site.client.id,
            len(x),
            values={"centroids": centroids.flatten().tolist(), "count": count},
            up=NUMBER * (centroids.size + (count < self.k)),
        )

    def _encoder(self) -> Encoder:
        return Encoder(self.encoder, self.shape, self.code, self.weights)


def k_means(codes: Tensor, k: int, seed: int) -> npt.NDArray[np.float32]:
    """Centroids `(min(k, n), e)` of codes `(n, e)`, in lexical order so that their numbering tells nothing."""
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
        row[: reply.values["count"]] = np.reshape(reply.values["centroids"], (-1, code))
    return table


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread inside: sums split over threads would differ from machine to machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(threads)
