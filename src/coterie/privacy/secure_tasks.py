"""The four exchanges of a secure sum as tasks, so that any engine can carry them (see `privacy.secure_sum`).

What a client must remember between two exchanges it keeps with itself, as it keeps private layers. Bytes and words
travel as float32 numbers that hold them exactly: a byte as one, a word of 32 bits as two of 16.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.federation import Client
from coterie.parameters import Layout
from coterie.privacy.noisy_sum import sum_quantiser
from coterie.privacy.secure_sum import (
    KEY_BYTES,
    SEALED_BYTES,
    SHARE_BYTES,
    VOUCHER_BYTES,
    NotOpened,
    PublicKeys,
    SecureClient,
    Words,
    vouch,
)
from coterie.tasks.base import Array, ClientContext, ClientState, Number, Reply, ReplySchema, SumNoise, Task
from coterie.trainers.base import SumRules, Trainer

KEPT = "secure sum"
"""Where a client keeps what it must remember of the sum that is going on."""
HALF = 2**16


def as_numbers(data: bytes) -> Tensor:
    """Bytes as float32 numbers `(n,)`."""
    return torch.from_numpy(np.frombuffer(data, np.uint8).astype(np.float32))


def as_bytes(numbers: Tensor | list[float]) -> bytes:
    """What `as_numbers` was given."""
    return np.asarray(numbers, dtype=np.float32).astype(np.uint8).tobytes()


def halves(words: Words) -> Tensor:
    """Words `(d,)` as float32 numbers `(2, d)` below 2^16: the lower halves, and the upper ones."""
    return torch.from_numpy(np.stack([words % HALF, words // HALF]).astype(np.float32))


def whole(numbers: Tensor) -> Words:
    """What `halves` was given."""
    lower, upper = numbers.numpy().astype(np.uint32)
    return np.asarray(lower + upper * np.uint32(HALF))


def remember(state: ClientState, client: SecureClient) -> None:
    """Keep one client's side of a sum with the client."""
    state[KEPT] = as_numbers(json.dumps(client.to_json()).encode())


def remembered(state: ClientState) -> SecureClient:
    """The client's side of the sum that is going on."""
    if KEPT not in state:
        raise NotOpened("this client knows of no secure sum: its node was started anew; it takes part in the next one")
    return SecureClient.from_json(json.loads(as_bytes(state[KEPT])))


@dataclass(frozen=True)
class OfferKeys(Task):
    """First exchange: begin a new sum as number `number`, and send fresh public keys."""

    number: int

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"keys": Array((2 * KEY_BYTES + VOUCHER_BYTES,), 0, 255)})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        client = SecureClient(self.number, 0, 0)
        remember(context.state, client)
        keys, rules = client.keys(), trainer.sum_rules
        sent = b"".join(keys) + vouch(rules and rules.key, self.number, keys)
        return Reply(context.client.id, 0, None, {"keys": as_numbers(sent).tolist()})


@dataclass(frozen=True)
class ShareSecrets(Task):
    """Second exchange: given the keys of the clients `numbers`, send each other one a sealed share of one's secrets.

    A client that has rules sends nothing where somebody's keys are not vouched for, or where fewer vectors than it
    demands would open a sum.
    """

    numbers: tuple[int, ...]
    keys: Tensor
    """`(n, 96)` bytes: two keys, and what vouches for them."""
    threshold: int
    minimum: int

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"boxes": Array(((len(self.numbers) - 1) * SEALED_BYTES,), 0, 255)})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        client = remembered(context.state)
        client.threshold, client.minimum = self.threshold, self.minimum
        keys = {n: open_keys(row) for n, row in zip(self.numbers, self.keys, strict=True)}
        if 2 * self.threshold <= len(keys):
            # Told different lists of who came through, two halves of the clients could show both secrets of one.
            raise NotOpened(f"{self.threshold} of {len(keys)} shares would open a secret: more than half must")
        if (rules := trainer.sum_rules) is not None:
            self._check(rules, keys)
        boxes = client.shares(keys)
        remember(context.state, client)
        sent = as_numbers(b"".join(boxes[number] for number in sorted(boxes)))
        return Reply(context.client.id, 0, None, {"boxes": sent.tolist()})

    def _check(self, rules: SumRules, keys: Mapping[int, PublicKeys]) -> None:
        if self.minimum < rules.least:
            raise NotOpened(f"sums of {self.minimum} would be opened, and this client demands {rules.least}")
        for (number, own), row in zip(keys.items(), self.keys, strict=True):
            if not hmac.compare_digest(as_bytes(row)[2 * KEY_BYTES :], vouch(rules.key, number, own)):
                raise NotOpened(f"the keys of client {number} of the sum are not vouched for by the clients' secret")


@dataclass(frozen=True)
class Masked(Task):
    """Third exchange: do `task`, and send `share` times its vector under masks in the vector's place.

    `boxes` are the shares `(m, 160)` that the clients `senders` sealed for this one. The server reads the other values
    of the reply and the vector's norm (unless the task hides it), and of the vector nothing but its cluster's sum.
    """

    task: Task
    senders: tuple[int, ...]
    boxes: Tensor
    share: float
    limit: float
    count: int
    noise: tuple[float, float] | None = None
    """As in `SumNoise`: the vector is cut and noise is added before the masks, and its norm is not told."""

    def schema(self, layout: Layout) -> ReplySchema:
        inner = self.task.schema(layout)
        assert inner.vector is not None
        numbers = Array((2, inner.vector * (2 if inner.wide else 1)), 0, HALF - 1)
        norm = {} if self._hides_norm(inner) else {"norm": Number(minimum=0)}
        return ReplySchema(None, {**inner.values, **norm, "masked": numbers}, part=inner.part)

    def _hides_norm(self, inner: ReplySchema) -> bool:
        return inner.hides_norm or self.noise is not None

    def cost(self, client: Client) -> float:
        return self.task.cost(client)

    @property
    def keeps_state(self) -> bool:
        """It does: a client remembers its side of the sum."""
        return True

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        client = remembered(context.state)
        if not 0 < self.share <= 1:
            raise NotOpened(f"a share of {self.share} of its vector: expected more than 0, up to 1")
        [reply], _ = self.task.perform([self.task], [context], trainer)
        assert reply.vector is not None
        if not torch.isfinite(reply.vector).all():
            raise NotOpened("its update is not finite: lower the learning rate")
        schema = self.task.schema(trainer.layout)
        needed = max(client.threshold, client.minimum)
        noise = None if self.noise is None else SumNoise(*self.noise)
        quantiser = sum_quantiser(self.limit, self.count, schema.wide, noise, needed)
        words = quantiser.encode((reply.vector.double() * self.share).numpy())
        boxes = {sender: as_bytes(row) for sender, row in zip(self.senders, self.boxes, strict=True)}
        masked = client.masked(words, boxes)
        remember(context.state, client)
        values = {
            name: reply.values[name] for name in (*schema.values, *(() if self._hides_norm(schema) else ("norm",)))
        }
        return Reply(context.client.id, reply.samples, None, values | {"masked": halves(masked)})


@dataclass(frozen=True)
class Reveal(Task):
    """Fourth exchange: given who came through, send the shares that take the masks off the sum; then forget them."""

    through: tuple[int, ...]
    held: int
    """How many clients' shares there are."""

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"shares": Array((self.held * SHARE_BYTES,), 0, 255)})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        client = remembered(context.state)
        del context.state[KEPT]
        shares = client.reveal(self.through)
        sent = as_numbers(b"".join(shares[number].to_bytes(SHARE_BYTES) for number in sorted(shares)))
        return Reply(context.client.id, 0, None, {"shares": sent.tolist()})


def open_keys(numbers: Tensor | list[float]) -> PublicKeys:
    """The public keys that a client offered."""
    data = as_bytes(numbers)
    return PublicKeys(data[:KEY_BYTES], data[KEY_BYTES : 2 * KEY_BYTES])
