"""What clients send of their inputs, once, so that they can be related: FLT's Algorithm 2, lines 1-11."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import NonNegativeFloat, PositiveInt

from coterie.encoders import Encoder
from coterie.errors import ConfigError, RunError, did_you_mean
from coterie.methods.codebook import form_codebook
from coterie.methods.needs import Needs
from coterie.methods.options import parse_call, with_checked_options
from coterie.methods.server import Server
from coterie.tasks import Embed, Request, Task
from coterie.tasks.embed import LEAST, centroid_table

OF_DATA = "centroids of the clients' data"
KINDS = ("auto", "centroids", "words")


class NoCentroids(RunError):
    """None of the clients that were asked to embed their data did so."""


class Embedded(NamedTuple):
    """The clients that answered and their centroids `(M, k, e)`, nan where a client sent fewer than k."""

    ids: tuple[str, ...]
    centroids: npt.NDArray[np.float32]


class Signature:
    """What a client sends of its inputs, and how much of single samples that shows."""

    kind: Literal["auto", "centroids", "words"] = "auto"
    """centroids of its codes; words: for each centroid the nearest word of a codebook that all clients make together;
    auto: words with secure sums, centroids in a simulation, and on a network without secure sums an error."""
    least: PositiveInt = LEAST
    """Samples behind a centroid: the mean of fewer shows them. Clients with fewer samples are left out."""
    noise: NonNegativeFloat = 0.0
    """Gaussian noise on a centroid, in standard deviations of the client's codes around its centroids."""

    def in_words(self, secure: bool) -> bool:
        """Whether words of a codebook are sent."""
        return self.kind == "words" or (self.kind == "auto" and secure)

    def needs(self, tasks: tuple[type[Task], ...]) -> Needs:
        """What a method that relates clients by this needs of them."""
        agreed = self.kind == "centroids"
        instead = (
            "give flt:signature=words with them"
            if agreed
            else "give secure_sums=true, with which clients send words that reveal none, or flt:signature=centroids if "
            "the server may see them"
        )
        return Needs("may", tasks, of_data=OF_DATA, in_sums=not agreed, agreed=agreed, instead=instead)


_checked: Any = with_checked_options(Signature, "signature")


def parse_signature(text: str) -> Signature:
    """The signature as an option writes it: "auto", "words" or, for example, "centroids(least=1,noise=0.5)"."""
    kind, options = parse_call(text, f"signature={text!r}")
    if kind not in KINDS:
        raise ConfigError(f"signature={text!r}: {did_you_mean(kind, KINDS)}")
    made: Signature = _checked(kind=kind, **options)
    return made


def embedding_task(
    server: Server, encoder: Encoder, k: int, finetune: int, signature: Signature, codebook: Any = None
) -> Embed:
    """The task of every client; with words of a `codebook (K, e)`, which the clients make first where there is none."""
    words = None
    if signature.in_words(server.sums_only):
        if finetune:
            raise ConfigError("signature='words' goes with finetune=0: words are of one encoder that all clients share")
        found = form_codebook(server, server.clients, encoder) if codebook is None else codebook
        words = torch.from_numpy(found)
    return Embed.with_encoder(encoder, k, finetune, 0, signature.least, words, signature.noise)


def codebook_of(centroids: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The words `(K, e)` that are in use among centroids `(M, k, e)` that are words."""
    used = centroids.reshape(-1, centroids.shape[-1])
    return np.unique(used[~np.isnan(used).any(axis=1)], axis=0)


def embed(server: Server, clients: Sequence[str], task: Embed) -> Embedded:
    """Ask clients for their centroids; one with fewer than `task.least` samples is not asked."""
    if task.k > (samples := sum(server.samples.values())):
        raise ConfigError(f"k={task.k} centroids with {samples} training samples: ask for fewer")
    large = [client for client in clients if server.samples[client] >= task.least]
    seeded = {client: dataclasses.replace(task, seed=server.seed_of(0, client, "embed")) for client in large}
    replies = list(server.ask([Request(client, own) for client, own in seeded.items()]))
    if not replies:
        raise NoCentroids(
            f"no client with {task.least} samples or more answered the embedding: see the faults of the run"
        )
    return Embedded(tuple(reply.client for reply in replies), centroid_table(replies, task.k, task.code))


def check_enough(clients: Sequence[str], least: int, server: Server) -> None:
    """Refuse newcomers that are too small to send a centroid."""
    for client in clients:
        if server.samples[client] < least:
            raise ConfigError(
                f"client {client!r} has {server.samples[client]} samples, a centroid is the mean of at least {least}: "
                "give more data"
            )
