"""The six exchanges of a secure sum as tasks, so that any engine can carry them (see `privacy.secure_sum`).

What a client must remember between two exchanges it keeps with itself, as it keeps private layers. Bytes and words
travel as float32 numbers that hold them exactly: a byte as one, a word of 32 bits as two of 16.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

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
    SIGNATURE_BYTES,
    VOUCHER_BYTES,
    Dealt,
    NotOpened,
    PublicKeys,
    SecureClient,
    Terms,
    Words,
    vouch,
)
from coterie.tasks.base import Array, ClientContext, ClientState, Number, Reply, ReplySchema, SumNoise, Task
from coterie.tasks.wire import checksum
from coterie.trainers.base import SumRules, Trainer

KEPT = "secure sum"
"""Where a client keeps what it must remember of the sum that is going on."""
HALF = 2**16
OFFERED_BYTES = 3 * KEY_BYTES + VOUCHER_BYTES


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
        raise NotOpened("this client knows of no secure sum: its node was restarted; it takes part in the next one")
    return SecureClient.from_json(json.loads(as_bytes(state[KEPT])))


@dataclass(frozen=True)
class OfferKeys(Task):
    """First exchange: begin a new sum as number `number`, and send fresh public keys."""

    number: int

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"keys": Array((OFFERED_BYTES,), 0, 255)})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        client = SecureClient(self.number)
        remember(context.state, client)
        keys, rules = client.keys(), trainer.sum_rules
        sent = b"".join(keys) + vouch(rules and rules.key, self.number, keys)
        return Reply(context.client.id, 0, None, {"keys": as_numbers(sent).tolist()})


@dataclass(frozen=True)
class ShareSecrets(Task):
    """Second exchange: given the terms of the sum, send each other client a sealed share of one's secrets.

    A client that has rules sends nothing where keys are not vouched for, or where fewer vectors than it demands would
    open a sum.
    """

    name: str
    tasks: tuple[str, ...]
    numbers: tuple[int, ...]
    keys: Tensor
    """`(n, 128)` bytes: three keys, and what vouches for them."""
    weights: tuple[float, ...]
    threshold: int
    minimum: int
    limit: float
    noise: tuple[float, float] | None = None

    def schema(self, layout: Layout) -> ReplySchema:
        count = len(self.numbers)
        committed = Array((2 * KEY_BYTES * count + KEY_BYTES,), 0, 255)
        return ReplySchema(None, {"boxes": Array(((count - 1) * SEALED_BYTES,), 0, 255), "commitments": committed})

    def terms(self) -> Terms:
        """What the sum is of."""
        keys = {n: open_keys(row) for n, row in zip(self.numbers, self.keys, strict=True)}
        weights = dict(zip(self.numbers, self.weights, strict=True))
        noise = None if self.noise is None else (self.noise[0], self.noise[1])
        return Terms(self.name, tuple(self.tasks), keys, weights, self.threshold, self.minimum, self.limit, noise)

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        client, terms = remembered(context.state), self.terms()
        if (rules := trainer.sum_rules) is not None:
            self._check(rules, terms)
        dealt = client.shares(terms)
        remember(context.state, client)
        boxes = as_numbers(b"".join(box for _, box in sorted(dealt.boxes.items())))
        committed = b"".join(b"".join(pair) for _, pair in sorted(dealt.commitments.items())) + dealt.seed
        values = {"boxes": boxes.tolist(), "commitments": as_numbers(committed).tolist()}
        return Reply(context.client.id, 0, None, values)

    def dealt_by(self, number: int, values: Mapping[str, list[float]]) -> Dealt:
        """What client `number` sent."""
        boxes, committed = as_bytes(values["boxes"]), as_bytes(values["commitments"])
        others = [other for other in self.numbers if other != number]
        return Dealt(
            dict(zip(others, pieces(boxes, SEALED_BYTES), strict=True)),
            dict(zip(self.numbers, map(pair_of, pieces(committed[:-KEY_BYTES], 2 * KEY_BYTES)), strict=True)),
            committed[-KEY_BYTES:],
        )

    def _check(self, rules: SumRules, terms: Terms) -> None:
        if self.minimum < rules.least:
            raise NotOpened(f"sums of {self.minimum} would be opened, and this client demands {rules.least}")
        for (number, own), row in zip(terms.keys.items(), self.keys, strict=True):
            if not hmac.compare_digest(as_bytes(row)[-VOUCHER_BYTES:], vouch(rules.key, number, own)):
                raise NotOpened(f"the keys of client {number} of the sum are not vouched for by the clients' secret")


@dataclass(frozen=True)
class CheckShares(Task):
    """Third exchange: open what the others sent; a signature that all was right, or the senders of what was not.

    `boxes` `(m, 224)` are what the clients `senders` sealed for this one, `commitments` `(m, 64)` what they stand by.
    """

    senders: tuple[int, ...]
    boxes: Tensor
    commitments: Tensor

    def schema(self, layout: Layout) -> ReplySchema:
        wrong, proof = Array((len(self.senders),), 0, 1), Array((SIGNATURE_BYTES,), 0, 255)
        return ReplySchema(None, {"wrong": wrong, "proof": proof})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        client = remembered(context.state)
        boxes = {sender: as_bytes(row) for sender, row in zip(self.senders, self.boxes, strict=True)}
        committed = {n: pair_of(as_bytes(row)) for n, row in zip(self.senders, self.commitments, strict=True)}
        wrong = client.check(boxes, committed)
        remember(context.state, client)
        proof = client.evidence() + bytes(SIGNATURE_BYTES - KEY_BYTES) if wrong else client.confirmation()
        values = {"wrong": [float(sender in wrong) for sender in self.senders], "proof": as_numbers(proof).tolist()}
        return Reply(context.client.id, 0, None, values)


@dataclass(frozen=True)
class Masked(Task):
    """Fourth exchange: do `task`, and send its vector times one's weight under masks in the vector's place.

    `confirmed` `(m, 64)` are the signatures of the clients `numbers` that they found all shares right. The server reads
    the other values of the reply and the vector's norm (unless the task hides it), and of the vector nothing but its
    cluster's sum.
    """

    task: Task
    numbers: tuple[int, ...]
    confirmed: Tensor
    noise: tuple[float, float] | None = None
    """As in `SumNoise` and in the terms: the vector is cut and noise is added before the masks, its norm is hidden."""

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
        terms = client.terms
        noise = None if terms.noise is None else SumNoise(*terms.noise)
        if task_digest(self.task) not in terms.tasks or (noise is None) != (self.noise is None):
            raise NotOpened("the task is none of those that the sum was agreed to be of")
        [reply], _ = self.task.perform([self.task], [context], trainer)
        assert reply.vector is not None
        if not torch.isfinite(reply.vector).all():
            raise NotOpened("its update is not finite: lower the learning rate")
        schema = self.task.schema(trainer.layout)
        quantiser = sum_quantiser(terms.limit, len(terms.keys), schema.wide, noise, client.needed)
        words = quantiser.encode((reply.vector.double() * client.share_of_largest()).numpy())
        masked = client.masked(words, signatures_of(self.numbers, self.confirmed))
        remember(context.state, client)
        values = {
            name: reply.values[name] for name in (*schema.values, *(() if self._hides_norm(schema) else ("norm",)))
        }
        return Reply(context.client.id, reply.samples, None, values | {"masked": halves(masked)})


@dataclass(frozen=True)
class Agree(Task):
    """Fifth exchange: sign who came through."""

    through: tuple[int, ...]

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"signature": Array((SIGNATURE_BYTES,), 0, 255)})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        client = remembered(context.state)
        signature = client.agree(self.through)
        remember(context.state, client)
        return Reply(context.client.id, 0, None, {"signature": as_numbers(signature).tolist()})


@dataclass(frozen=True)
class Reveal(Task):
    """Sixth exchange: given who came through, signed by `signers`, send the shares that take the masks off the sum."""

    through: tuple[int, ...]
    signers: tuple[int, ...]
    signatures: Tensor
    held: int
    """How many clients' shares there are."""

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"shares": Array((self.held * SHARE_BYTES,), 0, 255)})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        client = remembered(context.state)
        del context.state[KEPT]
        shares = client.reveal(self.through, signatures_of(self.signers, self.signatures))
        sent = as_numbers(b"".join(shares[number].to_bytes(SHARE_BYTES) for number in sorted(shares)))
        return Reply(context.client.id, 0, None, {"shares": sent.tolist()})


def open_keys(numbers: Tensor | list[float]) -> PublicKeys:
    """The public keys that a client offered."""
    return PublicKeys(*pieces(as_bytes(numbers)[:-VOUCHER_BYTES], KEY_BYTES))


def pieces(data: bytes, size: int) -> list[bytes]:
    """The data in pieces of that size."""
    return [data[i : i + size] for i in range(0, len(data), size)]


def pair_of(data: bytes) -> tuple[bytes, bytes]:
    """Two keys or hashes that stand one behind the other."""
    return data[:KEY_BYTES], data[KEY_BYTES:]


def signatures_of(numbers: tuple[int, ...], rows: Tensor) -> dict[int, bytes]:
    """Signatures `(m, 64)` by the number of the client."""
    return {number: as_bytes(row) for number, row in zip(numbers, rows, strict=True)}


def task_digest(task: Task) -> str:
    """What stands for a task in the terms of a sum: its kind, models and options, not the seed of one client."""
    found = hashlib.sha256(type(task).__name__.encode())
    for part in fields(task):  # type: ignore[arg-type]
        value = getattr(task, part.name)
        if part.name != "seed":
            found.update(f";{part.name}=".encode())
            found.update((checksum(value) if isinstance(value, Tensor) else repr(value)).encode())
    return found.hexdigest()
