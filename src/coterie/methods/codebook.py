"""A codebook that all clients make together: FLT's centroids are then words of it, and show no samples.

The words are learned by Linde, Buzo and Gray's method (1980): begin with the mean, split the words of most scatter in
two, let a few steps of k-means follow, and split again. A step is one sum over all clients, so that with secure sums
the server sees no client's codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from coterie.encoders import Encoder
from coterie.errors import RunError
from coterie.methods.server import Server
from coterie.randomness import numpy_generator
from coterie.tasks import Request
from coterie.tasks.words import WordSums

Floats = npt.NDArray[np.float64]

WORDS = 24
"""Words of the codebook. Of 16, 24, 32 and 48, 24 gave the most right decisions on 14 federations below number 400 of
`flt-decisions`; more words than a group has kinds of inputs keep its clients from sharing one."""
STEPS = 2
"""Steps of k-means after each splitting."""
LEAST_SPLIT = 100
"""Samples that a word must have to be split: the mean of few would show them. With 40 one decision more of 14 was
right, but images that someone in the federation holds were nearest to a word far more often than others like them."""
SPLIT = 0.5
"""How far the halves of a word go apart, in standard deviations of its codes."""


class Words(NamedTuple):
    """What a sum over all clients says of each word."""

    samples: Floats
    """`(K,)` how many are nearest to it."""
    mean: Floats
    """`(K, e)` of their codes; of a word that has none, the word itself."""
    variance: Floats
    """`(K, e)`."""


def form_codebook(
    server: Server, clients: Sequence[str], encoder: Encoder, count: int = WORDS
) -> npt.NDArray[np.float32]:
    """The words `(≤ count, e)` that the clients' codes gather around."""
    generator = numpy_generator(server.seed, "words")
    found = _asked(server, clients, encoder, np.zeros((1, encoder.code)))
    while len(found.mean) < count:
        scatter = np.where(found.samples >= LEAST_SPLIT, found.samples * found.variance.sum(1), 0.0)
        chosen = np.argsort(-scatter, kind="stable")[: count - len(found.mean)]
        chosen = chosen[scatter[chosen] > 0]
        if not len(chosen):
            break
        away = SPLIT * np.sqrt(found.variance[chosen]) * generator.choice([-1.0, 1.0], (len(chosen), encoder.code))
        rest = np.delete(found.mean, chosen, axis=0)
        words = np.concatenate([rest, found.mean[chosen] + away, found.mean[chosen] - away])
        for _ in range(STEPS):
            found = _asked(server, clients, encoder, words)
            words = found.mean
        kept = found.samples > 0
        found = Words(*(part[kept] for part in found))
    return found.mean.astype(np.float32)


def _asked(server: Server, clients: Sequence[str], encoder: Encoder, words: Floats) -> Words:
    """One sum over the clients."""
    sent = torch.from_numpy(words.astype(np.float32))
    task = WordSums(encoder.kind, encoder.shape, encoder.code, encoder.encoding_weights(), sent)
    requests = [Request(client, task) for client in clients]
    [total], _ = server.exchange(requests, weighting="uniform")
    if not total.count:
        raise RunError("no sum of the clients' codes came through: see the faults of the round")
    table = total.total.numpy().reshape(len(words), -1)
    samples = np.rint(table[:, -1])
    some = np.maximum(samples, 1.0)[:, None]
    mean = np.where(samples[:, None] > 0, table[:, : encoder.code] / some, words)
    variance = np.maximum(table[:, encoder.code : -1] / some - mean**2, 0.0)
    return Words(samples, mean, variance)
