"""The six exchanges of a secure sum as tasks, so that any engine can carry them (see `privacy.secure_sum`).

What a client must remember between two exchanges it keeps with itself, as it keeps private layers; the key that it
signs with too, unless it has a file. Bytes and words travel as float32 numbers that hold 16 bits each, exactly.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from coterie.federation import Client
from coterie.parameters import Layout
from coterie.privacy.client_keys import (
    CERTIFICATE_BYTES,
    OWNER_BYTES,
    certify,
    is_certified,
    new_signing_key,
    owner_of,
)
from coterie.privacy.keys import KEY_BYTES
from coterie.privacy.noisy_sum import sum_quantiser
from coterie.privacy.sealing import SIGNATURE_BYTES
from coterie.privacy.secure_sum import OFFERED_BYTES, SEALED_BYTES, Dealt, SecureClient
from coterie.privacy.shamir import SHARE_BYTES
from coterie.privacy.sum_terms import NotOpened, PublicKeys, Terms, keys_text
from coterie.privacy.whole_numbers import Words
from coterie.tasks.base import Array, ClientContext, ClientState, Number, Reply, ReplySchema, SumNoise, Task
from coterie.tasks.wire import checksum
from coterie.trainers.base import UNEVEN, SumRules, Trainer

KEPT = "secure sum"
"""Where a client keeps what it must remember of the sum that is going on."""
SIGNING_KEY = "signing key"
"""Where a client keeps the key that it made for its signatures."""
OWN_SEEDS = {"seed", "own_seed", "halves"}
"""Numbers in tasks from which a client draws by itself: every client is sent others."""
HALF = 2**16


def as_numbers(data: bytes) -> Tensor:
    """Bytes, an even number of them, as float32 numbers `(n / 2,)`."""
    return torch.from_numpy(np.frombuffer(data, "<u2").astype(np.float32))


def as_bytes(numbers: Tensor | list[float]) -> bytes:
    """What `as_numbers` was given."""
    return np.asarray(numbers, dtype=np.float32).astype("<u2").tobytes()


def array_of(count: int) -> Array:
    """That many bytes in a reply."""
    return Array((count // 2,), 0, HALF - 1)


def halves(words: Words) -> Tensor:
    """Words `(d,)` as float32 numbers `(2, d)` below 2^16: the lower halves, and the upper ones."""
    return torch.from_numpy(np.stack([words % HALF, words // HALF]).astype(np.float32))


def whole(numbers: Tensor) -> Words:
    """What `halves` was given."""
    lower, upper = numbers.numpy().astype(np.uint32)
    return np.asarray(lower + upper * np.uint32(HALF))


def remember(state: ClientState, client: SecureClient) -> None:
    """Keep one client's side of a sum with the client."""
    text = json.dumps(client.to_json()).encode()
    state[KEPT] = as_numbers(text + b" " * (len(text) % 2))


def remembered(state: ClientState) -> SecureClient:
    """The client's side of the sum that is going on."""
    if KEPT not in state:
        raise NotOpened("this client knows of no secure sum: its node was restarted; it takes part in the next one")
    return SecureClient.from_json(json.loads(as_bytes(state[KEPT])))


@dataclass(frozen=True)
class OfferKeys(Task):
    """First exchange: begin the sum `name` as number `number`, and send fresh public keys, certified by one's own."""

    name: str
    number: int

    def schema(self, layout: Layout) -> ReplySchema:
        return ReplySchema(None, {"keys": array_of(OFFERED_BYTES)})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        own, rules = signing_key_of(context.state, trainer), trainer.sum_rules
        client = SecureClient(self.number, _owner=owner_of(own), uneven=UNEVEN if rules is None else rules.uneven)
        remember(context.state, client)
        keys = client.keys()
        sent = b"".join(keys) + certify(own, keys_text(self.name, self.number, keys))
        return Reply(context.client.id, 0, None, {"keys": as_numbers(sent).tolist()})


@dataclass(frozen=True)
class ShareSecrets(Task):
    """Second exchange: given the terms of the sum, send each other client a sealed share of one's secrets.

    A client sends nothing where keys are not certified; one that has rules, where they are not of registered clients,
    or where the sum would be of fewer vectors, or have less noise, than it demands.
    """

    name: str
    tasks: tuple[str, ...]
    numbers: tuple[int, ...]
    keys: Tensor
    """`(n, OFFERED_BYTES / 2)`: what the clients offered."""
    weights: tuple[float, ...]
    threshold: int
    minimum: int
    limit: float
    noise: tuple[float, float] | None = None

    def schema(self, layout: Layout) -> ReplySchema:
        count = len(self.numbers)
        committed = array_of(2 * KEY_BYTES * count + KEY_BYTES)
        return ReplySchema(None, {"boxes": array_of((count - 1) * SEALED_BYTES), "commitments": committed})

    def terms(self) -> Terms:
        """What the sum is of."""
        keys = {n: open_offer(row)[0] for n, row in zip(self.numbers, self.keys, strict=True)}
        weights = dict(zip(self.numbers, self.weights, strict=True))
        noise = None if self.noise is None else (self.noise[0], self.noise[1])
        return Terms(self.name, tuple(self.tasks), keys, weights, self.threshold, self.minimum, self.limit, noise)

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        client, terms = remembered(context.state), self.terms()
        self._check_certificates()
        if (rules := trainer.sum_rules) is not None:
            check_rules(rules, terms)
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

    def _check_certificates(self) -> None:
        for number, row in zip(self.numbers, self.keys, strict=True):
            keys, certificate = open_offer(row)
            if not is_certified(keys.owner, keys_text(self.name, number, keys), certificate):
                raise NotOpened(f"the keys of client {number} of the sum are not certified for this sum")


@dataclass(frozen=True)
class CheckShares(Task):
    """Third exchange: open what the others sent; a signature that all was right, or the senders of what was not.

    `boxes` `(m, 112)` are what the clients `senders` sealed for this one, `commitments` `(m, 32)` what they stand by.
    """

    senders: tuple[int, ...]
    boxes: Tensor
    commitments: Tensor

    def schema(self, layout: Layout) -> ReplySchema:
        wrong, proof = Array((len(self.senders),), 0, 1), array_of(SIGNATURE_BYTES)
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

    `confirmed` `(m, 32)` are the signatures of the clients `numbers` that they found all shares right. The server reads
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
        if (rules := trainer.sum_rules) is not None and len(terms.tasks) > 1:
            check_personal(self.task, rules)
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
        return ReplySchema(None, {"signature": array_of(SIGNATURE_BYTES)})

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
        return ReplySchema(None, {"shares": array_of(self.held * SHARE_BYTES)})

    def answer(self, context: ClientContext, trainer: Trainer) -> Reply:
        client = remembered(context.state)
        del context.state[KEPT]
        shares = client.reveal(self.through, signatures_of(self.signers, self.signatures))
        sent = as_numbers(b"".join(shares[number].to_bytes(SHARE_BYTES) for number in sorted(shares)))
        return Reply(context.client.id, 0, None, {"shares": sent.tolist()})


def check_rules(rules: SumRules, terms: Terms) -> None:
    """NotOpened where a sum is not what this client demands."""
    if terms.minimum < rules.least:
        raise NotOpened(f"sums of {terms.minimum} would be opened, and this client demands {rules.least}")
    noise = 0.0 if terms.noise is None else terms.noise[0]
    if noise < rules.noise:
        raise NotOpened(f"the sum would have noise of {noise:g}, and this client demands {rules.noise:g}")
    for number, own in terms.keys.items():
        if own.owner not in rules.clients:
            raise NotOpened(f"client {number} of the sum is none of the registered clients")


def check_personal(task: Task, rules: SumRules) -> None:
    """NotOpened where others do another task: a model at which their updates are nothing leaves this client's alone."""
    if type(task).__name__ not in rules.allowed:
        raise NotOpened("other clients of the sum were given another model or task")


def signing_key_of(state: ClientState, trainer: Trainer) -> bytes:
    """The client's own private key: the one it was given, else one that it makes once and keeps."""
    if trainer.signing_key is not None:
        return trainer.signing_key
    if SIGNING_KEY not in state:
        state[SIGNING_KEY] = as_numbers(new_signing_key())
    return as_bytes(state[SIGNING_KEY])


def open_offer(numbers: Tensor | list[float]) -> tuple[PublicKeys, bytes]:
    """The public keys that a client offered, and its certificate of them."""
    offered = as_bytes(numbers)
    owner, certificate = offered[-OWNER_BYTES - CERTIFICATE_BYTES : -CERTIFICATE_BYTES], offered[-CERTIFICATE_BYTES:]
    mask, channel, sign = pieces(offered[: 3 * KEY_BYTES], KEY_BYTES)
    return PublicKeys(mask, channel, sign, owner), certificate


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
    """What stands for a task in the terms of a sum: its kind, models and options, not the seeds of one client."""
    found = hashlib.sha256(type(task).__name__.encode())
    for part in fields(task):  # type: ignore[arg-type]
        value = getattr(task, part.name)
        if part.name in OWN_SEEDS and value is not None:
            value = "a seed"
        found.update(f";{part.name}=".encode())
        found.update((checksum(value) if isinstance(value, Tensor) else repr(value)).encode())
    return found.hexdigest()
